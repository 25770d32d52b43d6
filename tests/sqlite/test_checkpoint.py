"""Checkpoints: the WAL begins anew beside the writer, and a stalled reader cannot stop that for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal
from posthouse.sqlite import checkpoint
from posthouse.sqlite.checkpoint import Checkpointer
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from posthouse.sqlite.read_pool import READ_TIMEOUT_S, ReadPool
from tests.faults.failing_vfs import FailingVFS
from tests.sqlite.waiting import eventually

PAGE = "x" * 4_000
Opener = Callable[[Durability], tuple[apsw.Connection, Checkpointer]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(database: Path, clock: FakeClock) -> Iterator[ReadPool]:
    pool = ReadPool(database, clock)
    yield pool
    pool.close()


@pytest.fixture
def fatals() -> list[Fatal]:
    return []


@pytest.fixture
def checkpointer(
    database: Path, pool: ReadPool, fatals: list[Fatal], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Checkpointer]:
    monkeypatch.setattr(checkpoint, "RESTART_AT_PAGES", 50)
    monkeypatch.setattr(checkpoint, "WAL_KEPT_BYTES", 200 * 4_120)
    made = Checkpointer(
        database,
        Durability.FULL,
        end_stalled_reads=pool.end_stalled,
        on_fatal=fatals.append,
        overgrown_at_pages=200,
    )
    yield made
    made.close()
    assert fatals == []


@pytest.fixture
def writer(database: Path, checkpointer: Checkpointer) -> Iterator[apsw.Connection]:
    db = open_writer(database, Durability.NORMAL)
    checkpointer.watch(db)
    yield db
    db.close()


def fill(db: apsw.Connection, rows: int) -> None:
    for n in range(rows):
        db.execute("INSERT INTO t VALUES (?, ?)", (n, PAGE))


def restarted(checkpointer: Checkpointer, since: int) -> Callable[[], bool]:
    return lambda: checkpointer.statistics()["restarts"] > since


def test_the_wal_begins_anew_while_the_writer_goes_on(writer: apsw.Connection, checkpointer: Checkpointer) -> None:
    for _ in range(10):
        seen = checkpointer.statistics()["restarts"]
        fill(writer, 60)
        eventually(restarted(checkpointer, seen))
    assert checkpointer.wal_bytes() < 200 * 4_120


def test_a_stalled_reader_is_ended_and_the_wal_shrinks_again(
    writer: apsw.Connection, checkpointer: Checkpointer, pool: ReadPool, clock: FakeClock
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    outcomes: list[BaseException] = []

    def read(db: apsw.Connection) -> None:
        rows = db.execute("SELECT * FROM t")
        rows.fetchone()
        begun.set()
        assert may_end.wait(30)
        rows.fetchone()

    def call() -> None:
        try:
            pool.run_blocking(read)
        except BaseException as exc:  # noqa: BLE001 - what it is told is what the test looks at
            outcomes.append(exc)

    stalled = threading.Thread(target=call)
    stalled.start()
    assert begun.wait(10)
    seen = checkpointer.statistics()["restarts"]
    fill(writer, 600)
    overgrown = checkpointer.wal_bytes()
    assert overgrown > 600 * 4_096
    assert checkpointer.statistics()["restarts"] == seen  # the control: nothing ends a reader before its time
    clock.advance(READ_TIMEOUT_S + 1)
    eventually(restarted(checkpointer, seen))
    eventually(lambda: checkpointer.wal_bytes() < overgrown / 2)
    may_end.set()
    stalled.join(10)
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["store_read_timeout"]


def test_a_stalled_reader_is_ended_when_only_another_process_writes(
    database: Path, checkpointer: Checkpointer, pool: ReadPool, clock: FakeClock
) -> None:
    others = open_writer(database, Durability.NORMAL)  # its commits poke nobody
    ended = threading.Event()

    def read(db: apsw.Connection) -> None:
        db.execute("SELECT * FROM t").fetchone()
        fill(others, 600)
        clock.advance(READ_TIMEOUT_S + 1)
        eventually(lambda: pool.statistics()["running"] == 1 and _is_closed(db))
        ended.set()

    with pytest.raises(Exception, match="took longer"):
        pool.run_blocking(read)
    assert ended.is_set()
    others.close()


def _is_closed(db: apsw.Connection) -> bool:
    try:
        return not db.in_transaction
    except apsw.ConnectionClosedError:
        return True


def test_a_checkpoint_whose_sync_fails_is_fatal(database: Path, fatals: list[Fatal]) -> None:
    vfs = FailingVFS()
    made = Checkpointer(database, Durability.FULL, end_stalled_reads=lambda: 0, on_fatal=fatals.append, vfs=vfs.name)
    db = open_writer(database, Durability.NORMAL, vfs=vfs.name)
    made.watch(db)
    vfs.sync_failure, vfs.sync_suffix = "sync", ".db"
    fill(db, 1_200)
    eventually(lambda: bool(fatals))
    vfs.sync_failure = None
    made.close()
    db.close()
    assert [failure.code for failure in fatals] == ["store_failed"]


def test_a_checkpoint_without_room_waits_for_room(database: Path, fatals: list[Fatal]) -> None:
    vfs = FailingVFS()
    made = Checkpointer(database, Durability.FULL, end_stalled_reads=lambda: 0, on_fatal=fatals.append, vfs=vfs.name)
    db = open_writer(database, Durability.NORMAL, vfs=vfs.name)
    made.watch(db)
    vfs.write_failure, vfs.write_suffix = "full", ".db"
    fill(db, 1_200)
    assert made.statistics()["restarts"] == 0
    vfs.write_failure = None
    fill(db, 1_200)
    eventually(lambda: made.statistics()["restarts"] > 0)
    made.close()
    db.close()
    assert fatals == []


def test_a_reader_that_ends_in_time_sees_its_snapshot_to_the_end(
    database: Path, writer: apsw.Connection, checkpointer: Checkpointer
) -> None:
    reader = open_reader(database)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM t").get == 1
    fill(writer, 500)
    assert reader.execute("SELECT count(*) FROM t").get == 1
    reader.execute("ROLLBACK")
    assert reader.execute("SELECT count(*) FROM t").get == 501
    reader.close()


@pytest.fixture
def extending(database: Path, fatals: list[Fatal]) -> Iterator[Opener]:
    """Open a writer with its checkpointer; both end with the test."""
    with ExitStack() as opened:

        def open_(durability: Durability) -> tuple[apsw.Connection, Checkpointer]:
            made = Checkpointer(database, durability, end_stalled_reads=lambda: 0, on_fatal=fatals.append)
            opened.callback(made.close)
            db = opened.enter_context(closing(open_writer(database, durability)))
            made.watch(db)
            return db, made

        yield open_
    assert fatals == []


FRAME_BYTES = 4_096 + 24


def frames_of(db: apsw.Connection) -> int:
    frames, _copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return frames


def test_file_of_a_written_wal_is_longer_than_its_frames_and_recovery_ignores_the_rest(
    extending: Opener, database: Path, tmp_path: Path
) -> None:
    db, checkpointer = extending(Durability.FULL)
    db.execute("DELETE FROM t")
    fill(db, 50)
    eventually(lambda: checkpointer.wal_bytes() > 2 * frames_of(db) * FRAME_BYTES)
    length = checkpointer.wal_bytes()
    fill(db, 10)
    assert frames_of(db) * FRAME_BYTES < length, "later commits fit into the file"
    crashed = tmp_path / "crashed.db"
    for suffix in ("", "-wal"):
        crashed.with_name(crashed.name + suffix).write_bytes(database.with_name(database.name + suffix).read_bytes())
    with closing(open_reader(crashed)) as again:
        assert again.execute("SELECT count(*) FROM t").get == 60


def test_wal_that_commits_do_not_sync_is_not_extended(
    extending: Opener,
) -> None:
    db, checkpointer = extending(Durability.NORMAL)
    fill(db, 60)
    checkpointer.close()
    assert checkpointer.wal_bytes() <= (frames_of(db) + 1) * FRAME_BYTES


def test_wal_is_not_extended_on_a_disk_without_much_room(extending: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_FREE_TIMES", 10**12)
    db, checkpointer = extending(Durability.FULL)
    fill(db, 60)
    checkpointer.close()
    assert checkpointer.wal_bytes() <= (frames_of(db) + 1) * FRAME_BYTES
