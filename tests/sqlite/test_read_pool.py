"""The read pool: snapshots, ended reads, and connections that never carry a snapshot over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.read_pool import READ_TIMEOUT_S, ReadPool

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(database: Path, clock: FakeClock) -> Iterator[ReadPool]:
    pool = ReadPool(database, clock, size=2)
    yield pool
    clock.advance(READ_TIMEOUT_S * 2)
    pool.close()


@pytest.fixture
def writer(database: Path) -> Iterator[apsw.Connection]:
    db = open_writer(database, Durability.FULL)
    yield db
    db.close()


def count(db: apsw.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM t").get)


async def test_a_read_sees_one_snapshot(pool: ReadPool, writer: apsw.Connection) -> None:
    def read(db: apsw.Connection) -> tuple[int, int]:
        before = count(db)
        writer.execute("INSERT INTO t VALUES (2, '')")
        return before, count(db)

    assert await pool.run(read) == (1, 1)
    assert await pool.run(count) == 2


async def test_a_read_cannot_write(pool: ReadPool) -> None:
    with pytest.raises(apsw.ReadOnlyError):
        await pool.run(lambda db: db.execute("DELETE FROM t").fetchall())


async def test_a_mistake_in_the_sql_reaches_the_caller_as_it_is(pool: ReadPool) -> None:
    with pytest.raises(apsw.SQLError):
        await pool.run(lambda db: db.execute("SELECT nonsense FROM t").get)
    assert await pool.run(count) == 1


def test_an_unfinished_select_does_not_leave_its_snapshot_to_the_next_read(
    pool: ReadPool, writer: apsw.Connection
) -> None:
    writer.execute("INSERT INTO t VALUES (2, '')")
    kept = pool.run_blocking(lambda db: db.execute("SELECT * FROM t"))  # a cursor, against the rules
    writer.execute("INSERT INTO t VALUES (3, '')")
    assert pool.run_blocking(count) == 3
    with pytest.raises(apsw.CursorClosedError):
        kept.fetchall()


def test_a_read_that_outlives_its_time_inside_sqlite_is_ended(pool: ReadPool, clock: FakeClock) -> None:
    failures: list[str] = []
    begun = threading.Event()

    def read(db: apsw.Connection) -> object:
        begun.set()
        return db.execute(ENDLESS).get

    def call() -> None:
        with pytest.raises(PosthouseError) as ended:
            pool.run_blocking(read)
        failures.append(ended.value.code)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(10)
    assert pool.end_stalled() == 0
    clock.advance(READ_TIMEOUT_S + 1)
    assert pool.end_stalled() == 1
    while thread.is_alive():  # the interrupt may come before the statement has begun: the next look repeats it
        pool.end_stalled()
        thread.join(0.05)
    assert failures == ["store_read_timeout"]
    assert pool.run_blocking(count) == 1


def test_a_read_that_stalls_between_two_rows_is_ended(pool: ReadPool, clock: FakeClock) -> None:
    def read(db: apsw.Connection) -> object:
        rows = db.execute("SELECT 1 UNION ALL SELECT n FROM t")
        rows.fetchone()
        clock.advance(READ_TIMEOUT_S + 1)
        assert pool.end_stalled() == 1
        assert pool.end_stalled() == 0
        return rows.fetchone()

    with pytest.raises(PosthouseError) as ended:
        pool.run_blocking(read)
    assert ended.value.code == "store_read_timeout"
    assert pool.statistics()["running"] == 0
    assert pool.run_blocking(count) == 1


def test_a_read_that_was_ended_does_not_succeed_afterwards(pool: ReadPool, clock: FakeClock) -> None:
    def read(db: apsw.Connection) -> int:
        clock.advance(READ_TIMEOUT_S + 1)
        pool.end_stalled()
        return 1

    with pytest.raises(PosthouseError) as ended:
        pool.run_blocking(read)
    assert ended.value.code == "store_read_timeout"


def test_many_threads_that_come_and_go_leave_no_connections_behind(pool: ReadPool) -> None:
    for _ in range(20):
        threads = [threading.Thread(target=pool.run_blocking, args=(count,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert pool.statistics()["running"] == 0
    assert pool.statistics()["open"] <= 2


async def test_close_waits_for_reads_that_run_and_refuses_later_ones(database: Path, clock: FakeClock) -> None:
    pool = ReadPool(database, clock)
    begun, may_end = threading.Event(), threading.Event()

    def read(db: apsw.Connection) -> int:
        begun.set()
        assert may_end.wait(10)
        return count(db)

    reading = asyncio.create_task(pool.run(read))
    assert await asyncio.to_thread(begun.wait, 10)
    closing = asyncio.create_task(asyncio.to_thread(pool.close))
    may_end.set()
    assert await reading == 1
    await asyncio.wait_for(closing, 10)
    with pytest.raises(PosthouseError) as refused:
        await pool.run(count)
    assert refused.value.code == "store_closed"


def test_close_does_not_wait_for_ever_for_a_stalled_read(database: Path, clock: FakeClock) -> None:
    pool = ReadPool(database, clock)
    begun, may_end = threading.Event(), threading.Event()

    def read(_db: apsw.Connection) -> None:
        begun.set()
        may_end.wait(10)

    def call() -> None:
        with pytest.raises(PosthouseError):
            pool.run_blocking(read)

    stalled = threading.Thread(target=call)
    stalled.start()
    assert begun.wait(10)
    clock.advance(READ_TIMEOUT_S + 1)
    closing = threading.Thread(target=pool.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    may_end.set()
    stalled.join(10)
