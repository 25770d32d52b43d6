"""What one transaction promises to its items, on a bare database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, Transient
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.transaction import Transaction, run_items
from posthouse.storage.batch import Item
from tests.faults.failing_vfs import FailingVFS

Work = Callable[[Transaction], int]


@pytest.fixture
def vfs() -> FailingVFS:
    return FailingVFS()


@pytest.fixture
def tx(tmp_path: Path, vfs: FailingVFS) -> Iterator[Transaction]:
    db = open_writer(tmp_path / "t.db", Durability.FULL, vfs=vfs.name)
    db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    db.execute(
        "CREATE TABLE t (n INTEGER UNIQUE, body TEXT, "
        "parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    yield Transaction(db)
    vfs.write_failure = vfs.sync_failure = None
    db.close()


def put(n: int, size: int = 0, parent: int | None = None) -> Work:
    def work(tx: Transaction) -> int:
        tx.db.execute("INSERT INTO t VALUES (?, ?, ?)", (n, "x" * size, parent))
        return n

    return work


def run(tx: Transaction, *works: Work) -> tuple[list[object], Fatal | None]:
    items = [Item(work) for work in works]
    fatal = run_items(tx, items, FakeClock(), "t.db")
    return [item.error or item.result for item in items], fatal


def stored(tx: Transaction) -> list[int]:
    return [n for (n,) in tx.db.execute("SELECT n FROM t ORDER BY n")]


def test_an_item_may_run_again_but_only_its_last_run_counts(tx: Transaction) -> None:
    runs: list[int] = []

    def counting(tx: Transaction) -> int:
        runs.append(1)
        return put(1)(tx)

    def broken(_tx: Transaction) -> int:
        raise ValueError

    answers, _ = run(tx, counting, broken, put(2))
    assert (answers[0], answers[2]) == (1, 2)
    assert len(runs) == 2
    assert stored(tx) == [1, 2]


def test_a_violated_constraint_is_its_items_answer_alone(tx: Transaction) -> None:
    answers, fatal = run(tx, put(1), put(1), put(2))
    assert isinstance(answers[1], apsw.ConstraintError)
    assert (answers[0], answers[2], fatal) == (1, 2, None)
    assert stored(tx) == [1, 2]


def test_a_constraint_that_only_commit_checks_fails_one_item_alone(tx: Transaction) -> None:
    answers, fatal = run(tx, put(1), put(2, parent=99), put(3))
    assert (answers[0], answers[2], fatal) == (1, 3, None)
    assert isinstance(answers[1], Exception)
    assert stored(tx) == [1, 3]


def test_no_room_in_the_middle_of_a_batch_fails_the_item_that_needs_it(tx: Transaction) -> None:
    tx.db.pragma("max_page_count", tx.db.pragma("page_count") + 4)
    answers, fatal = run(tx, put(1), put(2, size=1_000_000), put(3))
    assert fatal is None
    assert (answers[0], answers[2]) == (1, 3)
    assert isinstance(answers[1], Transient)
    assert answers[1].code == "store_full"
    assert stored(tx) == [1, 3]


def test_an_item_that_hides_that_its_transaction_is_gone_is_not_believed(tx: Transaction) -> None:
    tx.db.pragma("max_page_count", tx.db.pragma("page_count") + 4)

    def hiding(tx: Transaction) -> int:
        try:
            return put(1, size=1_000_000)(tx)
        except apsw.FullError:
            put(10)(tx)  # outside any transaction by now
            return 1

    def wrapping(tx: Transaction) -> int:
        try:
            return put(2, size=1_000_000)(tx)
        except apsw.FullError as exc:
            raise KeyError("wrapped") from exc

    for lone in (hiding, wrapping):
        answers, fatal = run(tx, lone)
        assert [getattr(answer, "code", answer) for answer in answers] == ["store_full"]
    tx.db.execute("DELETE FROM t")
    answers, fatal = run(tx, hiding, wrapping, put(3))
    assert fatal is None
    assert [getattr(answer, "code", answer) for answer in answers] == ["store_full", "store_full", 3]


@pytest.mark.parametrize(("failure", "code"), [("full", "store_full"), ("busy", "store_locked")])
def test_a_commit_that_fails_is_a_rolled_back_batch(tx: Transaction, vfs: FailingVFS, failure: str, code: str) -> None:
    run(tx, put(1))
    vfs.write_failure, vfs.room = failure, 5_000
    answers, fatal = run(tx, *(put(n, size=4_000) for n in range(2, 10)))
    assert fatal is None
    assert all(isinstance(answer, Transient) and answer.code == code for answer in answers)
    vfs.write_failure = None
    assert stored(tx) == [1]
    assert run(tx, put(2)) == ([2], None)
    assert stored(tx) == [1, 2]


@pytest.mark.parametrize("failure", ["write", "sync"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_commit_that_meets_an_io_error_is_fatal_and_no_item_succeeds(
    tx: Transaction, vfs: FailingVFS, failure: str, count: int
) -> None:
    if failure == "write":
        vfs.write_failure = failure
    else:
        vfs.sync_failure = failure
    answers, fatal = run(tx, *(put(n) for n in range(count)))
    assert fatal is not None
    assert fatal.code == "store_failed"
    assert all(isinstance(answer, Fatal) for answer in answers)


def test_a_locked_database_is_told_to_every_item(tx: Transaction, tmp_path: Path) -> None:
    tx.db.set_busy_timeout(10)
    other = open_writer(tmp_path / "t.db", Durability.FULL)
    other.execute("BEGIN IMMEDIATE")
    answers, fatal = run(tx, put(1), put(2))
    assert fatal is None
    assert [getattr(answer, "code", None) for answer in answers] == ["store_locked", "store_locked"]
    other.close()
    assert run(tx, put(1))[0] == [1]


def test_each_failed_item_has_an_exception_of_its_own(tx: Transaction, vfs: FailingVFS) -> None:
    vfs.write_failure = "full"
    answers, _ = run(tx, put(1), put(2))
    assert answers[0] is not answers[1]
