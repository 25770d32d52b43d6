"""`posthouse relay migrate`: a store moves between SQLite and PostgreSQL, and readers go on at their cursors."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from posthouse.journal.cursor import Extent
from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.model.filters import Filter
from posthouse.model.lock_api import LockGrant
from posthouse.pipeline.demo.cast import make_cast
from posthouse.pipeline.demo.demo_history import START_NS
from posthouse.pipeline.demo.relay_scene import play_relay
from posthouse.postgresql.server_connection import ServerConnection, open_reader_session
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.ops.move_store import move_to_file, move_to_server
from posthouse.relay.ops.table_copy import common_tables
from posthouse.relay.store.postgresql.pg_journal import find_stored
from posthouse.relay.store.sqlite.store import SqliteStore, find_moved, stored_extent
from posthouse.relay.wire.lock_operations import Acquire
from posthouse.sqlite.connection import open_reader
from tests.cli.command_line import CommandLine, Outcome
from tests.postgresql.server import PostgresServer
from tests.relay.accept.answers import accepted, code
from tests.relay.authors import Author
from tests.relay.process.relay import refused

CLOCK = SystemClock()
ALICE = Author(1, CLOCK)
RELAY = Author(99).node
ANY_TEXT = "a\0b\N{SNOWMAN}"


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which every kind of record occurs, and names with any text."""
    folder = tmp_path_factory.mktemp("played") / "relay"
    asyncio.run(play_relay(folder, FakeClock(wall_ns=START_NS), make_cast(1, 4), 1, 20, 1))
    asyncio.run(_add_any_text(folder))
    return folder / "relay.db"


async def _add_any_text(folder: Path) -> None:
    core = await RelayEngine.start(EngineSettings(folder, RELAY, admins=(ALICE.node,)), CLOCK)
    grant = await core.locks.ask(ALICE.node, Acquire("deploy", 600_000))
    assert isinstance(grant, LockGrant)
    await core.accept(ALICE.raw(30_000, ("d", ANY_TEXT), content=ANY_TEXT))
    await core.close()


@pytest.fixture
def file(played: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    (tmp_path / "relay").mkdir(mode=0o700)
    return Path(shutil.copy(played, tmp_path / "relay" / "relay.db"))


def refusal(work: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(PosthouseError) as refused_:
        work(*arguments)
    return refused_.value.code


def test_store_moves_to_postgresql_and_back_with_every_row(file: Path, database: str) -> None:
    extent = stored_extent(file)
    assert extent is not None and extent.head > 100
    there = move_to_server(file, database)
    assert there.extent == extent == find_stored(database).extent
    back = move_to_file(database, file)
    assert back.extent == extent == stored_extent(file)
    assert back.digest == there.digest
    assert check_relay(file) == []
    assert find_moved(file) is None


async def test_relay_goes_on_at_its_new_place_and_a_reader_at_its_cursor(file: Path, database: str) -> None:
    core = await RelayEngine.start(EngineSettings(file.parent, RELAY), CLOCK)
    former = ALICE.raw(content="before the move")
    seq = accepted(await core.accept(former)).seq or 0
    granted = await core.locks.ask(ALICE.node, Acquire("other", 600_000, request_id="q"))
    await core.close()
    await asyncio.to_thread(move_to_server, file, database)
    moved = await RelayEngine.start(EngineSettings(file.parent, RELAY, store=database), CLOCK)
    assert code(await moved.accept(former)) == "200"
    later = accepted(await moved.accept(ALICE.raw(content="after the move"))).seq or 0
    mine = [Filter(authors=frozenset({ALICE.node}))]
    read = await moved.query(ALICE.node, mine, cursor=core.cursor(seq))
    assert [stored.seq for stored in read.events] == [later]
    locked = await moved.locks.ask(Author(5).node, Acquire("deploy", 1_000))
    assert not isinstance(locked, LockGrant)
    assert await moved.locks.ask(ALICE.node, Acquire("other", 600_000, request_id="q")) == granted
    await moved.close()
    await asyncio.to_thread(move_to_file, database, file)
    assert check_relay(file) == []


async def test_usage_of_a_mesh_is_that_of_its_events_after_every_move(file: Path, database: str) -> None:
    await publish_some(file.parent, None)
    with closing(open_reader(file)) as db:
        stored: int = db.execute("SELECT count(*) FROM events WHERE raw IS NOT NULL").get
        assert db.execute("SELECT sum(events) FROM mesh_usage").get < stored, "all were counted already"
    await asyncio.to_thread(move_to_server, file, database)
    moved = usage_on_server(database)
    assert sum(events for _mesh, events, _bytes in moved) == stored
    await publish_some(file.parent, database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM usage_changes").fetchone() != (0,)
    there = usage_on_server(database)
    assert there != moved
    await asyncio.to_thread(move_to_file, database, file)
    with closing(open_reader(file)) as db:
        assert db.execute("SELECT mesh, events, bytes FROM mesh_usage ORDER BY mesh").fetchall() == there
    assert check_relay(file) == []
    await asyncio.to_thread(move_to_server, file, database)  # the changes that the server had do not count again
    assert usage_on_server(database) == there


SOME = 5  # fewer than a file counts at once


async def publish_some(folder: Path, store: str | None) -> None:
    core = await RelayEngine.start(EngineSettings(folder, RELAY, store=store), CLOCK)
    for number in range(SOME):
        accepted(await core.accept(ALICE.raw(1, content=f"{number} at {store}")))
    await core.close()


def usage_on_server(database: str) -> list[tuple[str, int, int]]:
    with psycopg.connect(database) as connection:
        return connection.execute('SELECT mesh, events, bytes FROM current_usage ORDER BY mesh COLLATE "C"').fetchall()


async def test_moved_store_refuses_to_start_and_names_its_new_place(file: Path, database: str) -> None:
    await asyncio.to_thread(move_to_server, file, database)
    exit_code, problem = await refused(file.parent.parent, "--data-dir", str(file.parent))
    assert (exit_code, problem["code"]) == (5, "store_moved")
    assert "relay restore --in-place" in problem["hint"]
    await asyncio.to_thread(move_to_file, database, file)
    exit_code, problem = await refused(file.parent.parent, "--data-dir", str(file.parent), "--store", database)
    assert (exit_code, problem["code"], problem["path"]) == (5, "store_moved", "postgresql:///" + _name(database))


def _name(database: str) -> str:
    return database.partition("?")[0].rpartition("/")[2]


def test_move_that_was_done_before_changes_nothing_and_another_target_is_refused(
    file: Path, database: str, postgres: PostgresServer
) -> None:
    move_to_server(file, database)
    assert move_to_server(file, database).digests is None
    other = postgres.take_database()
    try:
        assert refusal(move_to_server, file, postgres.url(other)) == "store_moved"
    finally:
        postgres.give_back(other)
    assert refusal(move_to_file, database.replace("store_", "absent_"), file) in ("store_unavailable", "store_unusable")


def test_store_never_replaces_another_or_a_newer_one(file: Path, database: str, tmp_path: Path) -> None:
    old = Path(shutil.copy(file, tmp_path / "old.db"))
    move_to_server(file, database)
    assert refusal(move_to_server, old, database) == "store_exists"
    asyncio.run(_live_on(file.parent, database))
    move_to_file(database, file)
    # the copy was moved there too, but the file has gone on since
    assert move_to_file(database, file).digests is None
    asyncio.run(_live_on(file.parent, None))
    assert move_to_file(database, file).digests is None
    assert check_relay(file) == []


async def _live_on(folder: Path, store: str | None) -> None:
    core = await RelayEngine.start(EngineSettings(folder, RELAY, store=store), CLOCK)
    await core.accept(ALICE.raw(1, content="more"))
    await core.close()


def test_store_in_use_is_not_moved(file: Path, database: str) -> None:
    store = SqliteStore(file, CLOCK)
    try:
        assert refusal(move_to_server, file, database) == "store_in_use"
    finally:
        store.close()
    assert find_stored(database).extent is None


def test_every_table_and_column_is_copied_or_belongs_to_one_store(file: Path, database: str) -> None:
    db, session = open_reader(file), open_reader_session(database)
    copied = {(table.name, column) for table in common_tables(db, session) for column in table.columns}
    session.close()
    db.close()
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
        rest = {(table, column) for table, column in found if (table, column) not in copied}
    own = {"schema_versions", "audience_versions", "moved_to", "relays", "leader", "store_owner", "spent_challenges"}
    views = {"feed_journal_v1", "feed_events_v1", "feed_deliveries_v1", "feed_locks_v2"}
    usage = {"usage_changes", "current_usage"}  # the table mesh_usage is copied from and to their sum
    assert {each for each in rest if each[0] not in own | views | usage} == ONLY_ON_SERVER


ONLY_ON_SERVER = {("mailboxes", "session"), ("mesh_usage", "counted_through")} | {
    ("epochs", column) for column in ("system_identifier", "timeline", "journal_oid", "is_replicated")
}


def killed_move(kill_at: int | None, when: str, move: Callable[[], object]) -> int:
    """Run a move in a process that kills itself before or after a statement; return how many it sent, or -9."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(_move_until(kill_at, when, move)).encode())
        os._exit(0)
    os.close(writer)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reader) as sent:
        return int(sent.read() or 0) if ended == 0 else ended


def _move_until(kill_at: int | None, when: str, move: Callable[[], object]) -> int:
    count, queue = 0, ServerConnection.queue

    def counted(session: ServerConnection, statement: str, *parameters: Any) -> Any:
        nonlocal count
        count += 1
        if (count, when) == (kill_at, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        found = queue(session, statement, *parameters)
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerConnection, "queue", counted)
        move()
    return count


def may_start(file: Path, database: str) -> Iterator[Extent]:
    """Yield the extent of each place whose store a relay would start on."""
    if (at_file := stored_extent(file)) is not None and find_moved(file) is None:
        yield at_file
    stored = find_stored(database)
    if stored.extent is not None and stored.moved is None:
        yield stored.extent


@pytest.mark.parametrize("is_to_server", [True, False])
def test_killed_move_leaves_one_store_at_most_and_finishes_when_it_runs_again(
    file: Path, database: str, is_to_server: bool
) -> None:
    extent = stored_extent(file)
    there, back = partial(move_to_server, file, database), partial(move_to_file, database, file)
    move, move_back = (there, back) if is_to_server else (back, there)
    if not is_to_server:
        move_back()
    last = killed_move(None, "", move)  # the control: nothing kills it
    for kill_at, when in ((last // 2, "before"), (last, "before"), (last, "after")):
        move_back()
        assert killed_move(kill_at, when, move) == -signal.SIGKILL
        assert list(may_start(file, database)) in ([], [extent])
        assert move().extent == extent
        assert list(may_start(file, database)) == [extent]


def refused_code(ended: Outcome) -> str:
    """Return the code of a refusal, after warnings about the server."""
    return str(json.loads(ended.err.splitlines()[-1])["code"])


def test_commands_work_on_a_store_in_postgresql(
    file: Path, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    posthouse, place = CommandLine(tmp_path, capsys), ("--data-dir", str(file.parent), "--json")
    moved = posthouse("relay", "migrate", "--from", str(file), "--to", database, "--json")
    assert moved.exit == 0 and moved.value["head"] > 100 and moved.value["tables"]["events"]["rows"] > 20
    monkeypatch.setenv("POSTHOUSE_RELAY_STORE", database)
    backup, exported = tmp_path / "backup.db", tmp_path / "export.jsonl"
    assert posthouse("relay", "backup", str(backup), *place).exit == 0
    assert refused_code(posthouse("relay", "backup", str(backup), *place)) == "backup_exists"
    for command in (("verify",), ("check",), ("verify", str(backup)), ("export", str(exported))):
        assert posthouse("relay", *command, *place).exit == 0
    assert refused_code(posthouse("relay", "reindex", *place)) == "store_on_server"
    restored = posthouse("relay", "restore", str(backup), *place)
    assert restored.exit == 0 and restored.value["epoch"] != moved.value["epoch"]
    in_place = posthouse("relay", "restore", "--in-place", *place)
    extent = find_stored(database).extent
    assert extent is not None and extent.epoch == in_place.value["epoch"]
    assert dict(extent.ancestors) == {moved.value["epoch"]: moved.value["head"], restored.value["epoch"]: extent.head}
    assert posthouse("relay", "check", *place).exit == 0
    assert refused_code(posthouse("relay", "import", str(exported), *place)) == "store_exists"
    assert not list(tmp_path.glob("**/*.tmp"))


def test_export_becomes_the_store_of_an_empty_database(
    file: Path, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    posthouse, exported = CommandLine(tmp_path, capsys), tmp_path / "export.jsonl"
    assert posthouse("relay", "export", str(exported), "--data-dir", str(file.parent)).exit == 0
    monkeypatch.setenv("POSTHOUSE_RELAY_STORE", database)
    place = ("--data-dir", str(tmp_path / "new"), "--json")
    assert posthouse("relay", "import", str(exported), *place).exit == 0
    assert posthouse("relay", "check", *place).exit == 0


def test_migrate_names_the_mistake_in_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posthouse = CommandLine(tmp_path, capsys)
    for source, target in (("a.db", "b.db"), ("postgresql:///a", "postgresql:///b"), ("a.db", "postgresql:///b")):
        ended = posthouse("relay", "migrate", "--from", source, "--to", target, "--json")
        assert (ended.exit, ended.problem["code"]) == (2, "usage")
