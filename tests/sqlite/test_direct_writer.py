"""Direct transactions: the writer's promises, on the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.transaction import DirectWriter, Transaction
from tests.faults.failing_vfs import FailingVFS


@pytest.fixture
def vfs() -> FailingVFS:
    return FailingVFS()


@pytest.fixture
def fatals() -> list[Fatal]:
    return []


@pytest.fixture
def writer(database: Path, vfs: FailingVFS, fatals: list[Fatal]) -> Iterator[DirectWriter[Transaction]]:
    db = open_writer(database, Durability.FULL, vfs=vfs.name)
    made = DirectWriter(Transaction(db), FakeClock(), str(database), on_fatal=fatals.append)
    yield made
    vfs.sync_failure = vfs.write_failure = None
    made.close()


def insert(tx: Transaction) -> int:
    tx.db.execute("INSERT INTO t VALUES (2, '')")
    return count(tx)


def count(tx: Transaction) -> int:
    return int(tx.db.execute("SELECT count(*) FROM t").get)


def test_work_that_raises_leaves_nothing(writer: DirectWriter[Transaction]) -> None:
    def broken(tx: Transaction) -> int:
        insert(tx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.run(broken)
    assert writer.run(count) == 1


def test_a_transaction_inside_a_transaction_is_an_error_not_a_deadlock(writer: DirectWriter[Transaction]) -> None:
    with pytest.raises(RuntimeError, match="inside a transaction"):
        writer.run(lambda _tx: writer.run(insert))
    assert writer.run(insert) == 2


def test_threads_take_turns(writer: DirectWriter[Transaction]) -> None:
    threads = [threading.Thread(target=lambda: [writer.run(insert) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert writer.run(count) == 101


def test_no_room_is_transient_and_passes(writer: DirectWriter[Transaction], vfs: FailingVFS) -> None:
    vfs.write_failure = "full"
    with pytest.raises(PosthouseError) as refused:
        writer.run(insert)
    assert refused.value.code == "store_full"
    vfs.write_failure = None
    assert writer.run(insert) == 2


def test_after_a_failed_sync_every_later_call_raises(
    writer: DirectWriter[Transaction], vfs: FailingVFS, fatals: list[Fatal]
) -> None:
    vfs.sync_failure = "sync"
    for _ in range(2):
        with pytest.raises(Fatal):
            writer.run(insert)
    vfs.sync_failure = None
    with pytest.raises(Fatal):
        writer.run(count)
    assert len(fatals) == 1
    assert writer.state == "failed"


def test_a_closed_writer_says_so(writer: DirectWriter[Transaction]) -> None:
    writer.close()
    with pytest.raises(PosthouseError) as refused:
        writer.run(count)
    assert refused.value.code == "store_closed"
