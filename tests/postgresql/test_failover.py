"""A store on PostgreSQL survives the loss of its server: nothing answered is lost, or clients notice the loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.clock import SystemClock
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.model.event import encode_event
from posthouse.model.filters import Filter
from posthouse.model.lock_api import LockGrant
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.server import check_store_server
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.postgresql.pg_failover import EpochRow, ServerChange, ServerIdentity, change_of
from posthouse.relay.store.postgresql.pg_store import PgStore
from posthouse.relay.wire.accept_results import Accepted
from posthouse.relay.wire.lock_operations import Acquire
from tests.postgresql.server import find_installation
from tests.postgresql.standby import Replication, run_replication
from tests.relay.accept.answers import accepted, code
from tests.relay.authors import Author

CLOCK = SystemClock()
ALICE = Author(1, CLOCK)
RELAY = Author(99).node
PATIENCE_S = 40
FORMER = ServerIdentity("7", 3, 16_400)


@pytest.fixture
def pair() -> Iterator[Replication]:
    """A primary with an asynchronous standby."""
    installation = find_installation()
    if installation is None or not (installation / "bin" / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup")
    with run_replication(installation) as running:
        yield running


@asynccontextmanager
async def relay_on(url: str, folder: Path, fatal: list[Fatal]) -> AsyncIterator[RelayEngine]:
    """Run a relay; `fatal` collects what would end its process."""
    mark = MarkFile(folder / "relay.high-water")
    await asyncio.to_thread(check_store_server, url, folder, mark, is_new=False)
    core = await RelayEngine.start(
        EngineSettings(folder, RELAY, store=url, mark_file=mark), CLOCK, on_fatal=fatal.append
    )
    (folder / "key.json").touch()
    try:
        yield core
    finally:
        await core.close()


async def publish_until(core: RelayEngine, ends: asyncio.Event) -> list[str]:
    """Publish one event after the other; return the ids of those that the relay answered as stored."""
    stored = []
    while not ends.is_set():
        event = ALICE.event(content="answered or not")
        if isinstance(await core.accept(encode_event(event)), Accepted):
            stored.append(event.id)
    return stored


async def test_synchronous_standby_has_everything_that_was_answered(pair: Replication, tmp_path: Path) -> None:
    fatal: list[Fatal] = []
    await asyncio.to_thread(pair.set_synchronous, is_on=True)
    async with relay_on(pair.url, tmp_path, fatal) as core:
        ends, first = asyncio.Event(), accepted(await core.accept(ALICE.raw(content="first"))).seq or 0
        epoch, cursor = core.store.epoch, core.cursor(first)
        publishing = asyncio.create_task(publish_until(core, ends))
        await _grows(core, first + 20)
        await asyncio.to_thread(pair.lose_primary)
        await asyncio.to_thread(pair.promote)
        async with asyncio.timeout(PATIENCE_S):
            while code(await core.accept(ALICE.raw(content="after"))) != "201":  # noqa: ASYNC110 - it reconnects
                await asyncio.sleep(0.05)
        ends.set()
        stored = await publishing
        assert fatal == []
        known = await core.store.known(stored)
        assert len(stored) > 20 and known.keys() == set(stored)
        # the new primary has no standby yet: another epoch, which has all of the former one
        ((former, fork),) = (await core.store.extent()).ancestors
        assert former == epoch and fork >= first + 20
        with pytest.raises(PosthouseError) as reset:
            await core.query(ALICE.node, [Filter()], cursor=cursor)
        assert parse_cursor(reset.value.fields["cursor"]) == Cursor(core.store.epoch, first)
        await asyncio.to_thread(pair.primary.start)  # the former primary is writable, and first in the URL
        assert isinstance(core.store, PgStore)
        with pytest.raises(PosthouseError) as refused:
            await asyncio.to_thread(read_in_sessions, core.store._reads, 5)  # one more than may be open already
        assert refused.value.code == "store_timeline_old"
    with pytest.raises(PosthouseError) as refused:
        check_store_server(pair.url, tmp_path, MarkFile(tmp_path / "relay.high-water"), is_new=False)
    assert refused.value.code == "store_timeline_old"


def read_in_sessions(reads: SnapshotReads, count: int) -> None:
    """Read inside of reads, so that this many sessions are open at once."""
    if count:
        reads.run_blocking(lambda _session: read_in_sessions(reads, count - 1))


async def _grows(core: RelayEngine, head: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await core.store.extent()).head < head:  # noqa: ASYNC110 - the task publishes
            await asyncio.sleep(0.02)


async def test_readers_notice_what_an_asynchronous_standby_lacks(pair: Replication, tmp_path: Path) -> None:
    fatal: list[Fatal] = []
    async with relay_on(pair.url, tmp_path, fatal) as core:
        kept = accepted(await core.accept(ALICE.raw(content="kept"))).seq or 0
        grant = await core.locks.ask(ALICE.node, Acquire("deploy", 60_000))
        await asyncio.to_thread(pair.set_synchronous, is_on=True)
        epoch = core.store.epoch
        assert code(await core.accept(ALICE.raw(content="a commit that waited for the standby"))) == "201"
        await asyncio.to_thread(pair.set_synchronous, is_on=False)
        await asyncio.to_thread(pair.standby.stop)
        lost = ALICE.raw(content="lost")
        last = accepted(await core.accept(lost)).seq or 0
        # the epoch of which the standby has everything ended with it
        assert core.store.epoch != epoch
        early, late, extent = core.cursor(kept), core.cursor(last), await core.store.extent()
        assert extent.ancestors == ((epoch, last - 1),)
        await asyncio.to_thread(pair.lose_primary)
        await asyncio.to_thread(pair.standby.start)
        await asyncio.to_thread(pair.promote)
        async with asyncio.timeout(PATIENCE_S):
            while not fatal:
                await core.accept(ALICE.raw(content="too late"))
        assert [failure.code for failure in fatal] == ["store_failed_over"]
    async with relay_on(pair.url, tmp_path, fatal) as core:
        mine = [Filter(authors=frozenset({ALICE.node}))]
        now = await core.store.extent()
        assert (now.head >= last - 1, now.epoch != epoch) == (True, True)
        for cursor in (early, late):
            with pytest.raises(PosthouseError) as reset:
                await core.query(ALICE.node, mine, cursor=cursor)
            assert reset.value.code == "cursor_reset"
        assert code(await core.accept(lost)) == "201"  # its sender sends it again
        other = await core.locks.ask(ALICE.node, Acquire("other", 60_000))
        assert isinstance(grant, LockGrant) and isinstance(other, LockGrant)
        assert other.token > grant.token


@pytest.mark.parametrize(
    ("server", "is_replicated", "change"),
    [
        (FORMER, False, ServerChange.NONE),
        (FORMER._replace(timeline=4), True, ServerChange.COMPLETE),
        (FORMER._replace(timeline=4), False, ServerChange.LOSSY),
        (FORMER._replace(timeline=2), True, ServerChange.LOSSY),
        (FORMER._replace(system="8"), True, ServerChange.LOSSY),
        (FORMER._replace(journal_oid=9, timeline=4), True, ServerChange.LOSSY),
    ],
)
def test_only_a_promoted_standby_that_has_everything_continues_the_epoch(
    server: ServerIdentity, is_replicated: bool, change: ServerChange
) -> None:
    assert change_of(EpochRow("e", *FORMER, is_replicated), server) is change
    assert change_of(EpochRow("e", None, None, None, is_replicated), server) is ServerChange.NONE
