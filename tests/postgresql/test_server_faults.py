"""What a store on PostgreSQL answers when the server, the network or another relay gets in the way."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, PosthouseError, Transient
from posthouse.postgresql.group_transaction import WRITE_LOCK
from posthouse.postgresql.server_connection import open_writer_session
from posthouse.relay.store.postgresql.pg_journal import RELAY_LOCK
from posthouse.relay.store.postgresql.pg_store import RELAY, PgStore
from tests.postgresql.cut_proxy import CutProxy, Lost, cut_proxy
from tests.postgresql.server import PostgresServer
from tests.relay.authors import ALICE, BOB
from tests.relay.store.contract import add

_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid != pg_backend_pid()"
)


@asynccontextmanager
async def opened(url: str, fatal: list[Fatal] | None = None) -> AsyncIterator[PgStore]:
    """Open a store; `fatal` collects what would end the process."""
    collected: list[Fatal] = [] if fatal is None else fatal
    store = await asyncio.to_thread(PgStore, url, FakeClock(), on_fatal=collected.append)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


@asynccontextmanager
async def behind_proxy(postgres: PostgresServer, url: str) -> AsyncIterator[tuple[CutProxy, PgStore]]:
    """Open a store whose sessions go through a proxy."""
    with tempfile.TemporaryDirectory() as folder:  # short, because the path of a socket is
        own = url.replace(str(postgres.folder), folder)
        async with cut_proxy(postgres.folder, Path(folder)) as proxy, opened(own) as store:
            yield proxy, store


def end_sessions(url: str) -> None:
    """End every session of a database, as a restart of the server does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_END_SESSIONS)


async def refusal(store: PgStore) -> PosthouseError:
    """Return why an event is not written."""
    with pytest.raises(PosthouseError) as refused:
        await add(store, BOB.event())
    return refused.value


@pytest.mark.parametrize("lost", ["command", "answer"])
async def test_store_that_is_cut_off_while_it_opens_is_unavailable(
    postgres: PostgresServer, database: str, lost: Lost
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = database.replace(str(postgres.folder), folder)
        async with opened(database):
            pass  # the schema is there, and the next COMMIT is that of the epoch
        async with cut_proxy(postgres.folder, Path(folder)) as proxy:
            proxy.cut_next = lost
            with pytest.raises(Transient) as refused:
                await asyncio.to_thread(PgStore, own, FakeClock())
            assert (refused.value.code, proxy.cuts) == ("store_unavailable", 1)
            async with opened(own) as store:
                assert await add(store, ALICE.event()) == [1]


async def test_group_whose_answer_to_commit_is_lost_is_answered_as_committed(
    postgres: PostgresServer, database: str
) -> None:
    event = ALICE.event()
    async with behind_proxy(postgres, database) as (proxy, store):
        proxy.cut_next = "answer"
        assert await add(store, event) == [1]
        assert proxy.cuts == 1
        assert await add(store, BOB.event()) == [2]
        assert await store.known([event.id]) == {event.id: 1}


async def test_group_whose_commit_never_arrived_is_refused_for_now_and_leaves_nothing(
    postgres: PostgresServer, database: str
) -> None:
    async with behind_proxy(postgres, database) as (proxy, store):
        proxy.cut_next = "command"
        failure = await refusal(store)
        assert (failure.code, isinstance(failure, Transient), proxy.cuts) == ("store_unavailable", True, 1)
        assert await add(store, ALICE.event()) == [1]


async def test_sessions_that_the_server_ended_are_opened_again_without_a_refusal(database: str) -> None:
    async with opened(database) as store:
        assert await add(store, ALICE.event()) == [1]
        await store.extent()
        await asyncio.to_thread(end_sessions, database)
        assert await add(store, ALICE.event()) == [2]
        assert (await store.extent()).head == 2


async def test_writer_that_stopped_inside_its_transaction_stops_the_others_only_for_a_moment(database: str) -> None:
    async with opened(database) as store:
        stopped = await asyncio.to_thread(open_writer_session, database)
        stopped.queue("BEGIN")
        stopped.queue("SELECT pg_advisory_xact_lock($1)", WRITE_LOCK)
        assert await add(store, ALICE.event()) == [1]  # after the server has ended the stopped session
        stopped.close()


async def test_second_relay_on_a_database_is_refused(database: str) -> None:
    async with opened(database):
        with pytest.raises(PosthouseError) as refused:
            await asyncio.to_thread(PgStore, database, FakeClock())
        assert refused.value.code == "store_in_use"


async def test_relay_that_finds_records_of_another_one_ends(database: str) -> None:
    fatal: list[Fatal] = []
    async with opened(database, fatal) as store:
        await add(store, ALICE.event())
        await asyncio.to_thread(end_sessions, database)
        async with opened(database) as other:
            await add(other, BOB.event())
        assert (await refusal(store)).code == "store_taken_over"
        assert [failure.code for failure in fatal] == ["store_taken_over"]


async def test_server_that_cannot_be_reached_is_a_transient_refusal(tmp_path: Path) -> None:
    with pytest.raises(Transient) as refused:
        await asyncio.to_thread(PgStore, f"postgresql://x@/x?host={tmp_path}", FakeClock())
    assert refused.value.code == "store_unavailable"


async def test_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    postgres.admin("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(PosthouseError) as refused:
        await asyncio.to_thread(PgStore, postgres.url("latin"), FakeClock())
    assert refused.value.code == "store_unusable"
    assert "LATIN1" in str(refused.value)


async def test_database_of_a_newer_posthouse_is_refused_unchanged(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE schema_versions SET version = version + 1")
        with pytest.raises(PosthouseError) as refused:
            await asyncio.to_thread(PgStore, database, FakeClock())
        connection.execute("UPDATE schema_versions SET version = version - 1")
    assert refused.value.code == "store_schema_newer"


async def test_schema_changes_only_while_no_relay_uses_the_database(postgres: PostgresServer) -> None:
    postgres.admin("CREATE DATABASE older ENCODING 'UTF8' TEMPLATE template0")
    url = postgres.url("older")
    first = RELAY.migrations[0]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE schema_versions (component text PRIMARY KEY, version integer NOT NULL)")
        connection.execute(first.encode())
        connection.execute("INSERT INTO schema_versions VALUES ('relay', 1)")
        connection.execute("SELECT pg_advisory_lock_shared(%s)", (RELAY_LOCK,))
        with pytest.raises(PosthouseError) as refused:
            await asyncio.to_thread(PgStore, url, FakeClock(), is_shared=True)
        assert refused.value.code == "store_in_use"
        assert connection.execute("SELECT version FROM schema_versions").fetchone() == (1,)
    async with opened(url) as store:
        assert await add(store, ALICE.event()) == [1]


async def test_owner_of_a_database_needs_no_other_rights(postgres: PostgresServer) -> None:
    postgres.admin("CREATE ROLE plain LOGIN")
    postgres.admin("CREATE DATABASE plain OWNER plain")
    async with opened(postgres.url("plain").replace("posthouse@", "plain@")) as store:
        assert await add(store, ALICE.event())
