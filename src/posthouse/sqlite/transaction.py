"""One write transaction for many items, in which a failed item does not affect the others; DirectWriter and BulkInsert.

`run_items` is the only way to write rows to a store. Either all rows of an item are written or none, and an item gets
its result only after COMMIT has returned. The effect of an error on the transaction is read from SQLite
(`in_transaction`), never assumed: FULL, NOMEM and some BUSY errors roll back everything, not only the savepoint. Items
run first without savepoints; if one fails, the batch is rolled back and runs again with one savepoint per item, and if
the whole transaction fails, item by item. So an item may run more than once; only the rows of its last run exist.
DirectWriter gives the same guarantees for one item at a time on the calling thread: for the bus's NORMAL commits a
hand-over to another thread would cost more than the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import apsw

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, copy_error, error
from posthouse.sqlite.connection import busy_handler, ends_transaction, skip_checkpoint_on_close, translate
from posthouse.storage.batch import BatchState, Item


class Transaction(BatchState):
    """The transaction as an item sees it; one object per connection, used for every batch."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__()
        self.db = db

    def commit_items(self, items: Sequence[Item[Any]], clock: Clock, path: str) -> Fatal | None:
        """Run `items` in one transaction and set the result or error of each."""
        return run_items(self, items, clock, path)

    @property
    def changes(self) -> int:
        """How many rows this connection has changed so far."""
        return self.db.total_changes()

    def close(self, *, is_failed: bool) -> None:
        """Close the connection; after a failure without another write."""
        if is_failed:
            skip_checkpoint_on_close(self.db)
        self.db.close()


TxT = TypeVar("TxT", bound=Transaction)


class _CommitError(Exception):
    """COMMIT failed and everything is rolled back; `cause` says why."""

    def __init__(self, cause: apsw.Error) -> None:
        self.cause = cause


def run_items(tx: TxT, items: Sequence[Item[TxT]], clock: Clock, path: str) -> Fatal | None:
    """Run `items` in one transaction and set the result or error of each; return an error that must end the process."""
    try:
        wall_ns = clock.wall_ns()
    except Exception as exc:  # noqa: BLE001 - a failing clock must not end the writer thread
        return _fail_all(items, exc)
    if len(items) == 1:
        return _run_alone(tx, items[0], wall_ns, path)
    return _run_together(tx, items, wall_ns, path)


def _run_alone(tx: TxT, item: Item[TxT], wall_ns: int, path: str) -> Fatal | None:
    """Run one item; the transaction is its savepoint."""
    try:
        _transact(tx, (item,), wall_ns, path, _run_without_savepoints)
    except BaseException as exc:  # noqa: BLE001 - the caller gets it
        failure = _to_caller_error(exc, path)
        item.result, item.error = None, failure
        return failure if isinstance(failure, Fatal) else None
    return None


def _run_together(tx: TxT, items: Sequence[Item[TxT]], wall_ns: int, path: str) -> Fatal | None:
    try:
        _transact(tx, items, wall_ns, path, _run_without_savepoints)
    except (apsw.BusyError, Fatal) as exc:  # nothing ran, or the store failed: another try is useless
        return _fail_all(items, _to_caller_error(exc, path))
    except _CommitError as exc:
        return _after_failed_commit(tx, items, wall_ns, path, exc)
    except BaseException as exc:  # noqa: BLE001 - the run with savepoints gives it to its item
        return _run_isolated(tx, items, wall_ns, path, exc)
    return None


def _run_isolated(tx: TxT, items: Sequence[Item[TxT]], wall_ns: int, path: str, first: BaseException) -> Fatal | None:
    """Run the batch again with one savepoint per item, or item by item if SQLite rolled back the transaction."""
    if ends_transaction(first):
        return _run_one_by_one(tx, items, wall_ns, path)
    try:
        _transact(tx, items, wall_ns, path, _run_with_savepoints)
    except _CommitError as exc:
        return _after_failed_commit(tx, items, wall_ns, path, exc)
    except BaseException as exc:  # noqa: BLE001 - raised by the transaction, not by an item
        if ends_transaction(exc) and not isinstance(exc, apsw.BusyError):
            return _run_one_by_one(tx, items, wall_ns, path)
        return _fail_all(items, _to_caller_error(exc, path))
    return None


def _after_failed_commit(
    tx: TxT, items: Sequence[Item[TxT]], wall_ns: int, path: str, failed: _CommitError
) -> Fatal | None:
    if isinstance(failed.cause, apsw.ConstraintError):  # a deferred constraint of one item must not fail the others
        return _run_one_by_one(tx, items, wall_ns, path)
    return _fail_all(items, _to_caller_error(failed, path))


def _run_one_by_one(tx: TxT, items: Sequence[Item[TxT]], wall_ns: int, path: str) -> Fatal | None:
    for position, item in enumerate(items):
        if fatal := _run_alone(tx, item, wall_ns, path):
            _fail_all(items[position:], fatal)
            return fatal
    return None


def _transact(
    tx: TxT,
    items: Sequence[Item[TxT]],
    wall_ns: int,
    path: str,
    run: Callable[[TxT, Sequence[Item[TxT]]], None],
) -> None:
    """BEGIN, run, COMMIT; if anything raises, roll back everything."""
    db = tx.db
    try:
        if db.in_transaction:  # an interrupt came between a failure and its ROLLBACK
            _roll_back(tx, path)
        db.execute("BEGIN IMMEDIATE")
        tx.begin(wall_ns)
        run(tx, items)
        tx.before_commit()
    except BaseException:
        _roll_back(tx, path)
        raise
    try:
        db.execute("COMMIT")
    except apsw.Error as exc:
        _roll_back(tx, path)
        raise _CommitError(exc) from exc
    tx.undo.clear()
    tx.committed()


def _run_without_savepoints(tx: TxT, items: Sequence[Item[TxT]]) -> None:
    db = tx.db
    for item in items:
        try:
            item.result = item.work(tx)
        except BaseException as exc:
            raise _raised(tx, exc) from exc
        if not db.in_transaction:
            raise _lost_transaction_error()
        item.error = None


def _run_with_savepoints(tx: TxT, items: Sequence[Item[TxT]]) -> None:
    db = tx.db
    for item in items:
        mark, undo_count = tx.mark(), len(tx.undo)
        db.execute("SAVEPOINT item")
        try:
            item.result = item.work(tx)
            item.error = None
        except BaseException as exc:
            failure = _raised(tx, exc)
            if ends_transaction(failure):
                raise failure from exc
            db.execute("ROLLBACK TO item")
            tx.rewind(mark)
            tx.take_back(undo_count)
            item.result, item.error = None, failure
        if not db.in_transaction:
            raise _lost_transaction_error()
        db.execute("RELEASE item")


def _raised(tx: Transaction, exc: BaseException) -> BaseException:
    """Return the exception of an item, or the SQLite error behind it if that ended the transaction."""
    if not tx.db.in_transaction:
        cause: BaseException | None = exc
        while cause is not None and not isinstance(cause, apsw.Error):
            cause = cause.__cause__ or cause.__context__
        return cause if cause is not None and ends_transaction(cause) else _lost_transaction_error()
    if isinstance(exc, StopIteration):  # a future cannot carry StopIteration
        return RuntimeError(f"the item raised {exc!r}")
    return exc


def _lost_transaction_error() -> apsw.Error:
    """Return the error for an item that caught the end of its transaction: later statements would autocommit."""
    return apsw.FullError("an item went on after SQLite had rolled back its transaction")


def _to_caller_error(exc: BaseException, path: str) -> BaseException:
    """Return the error for the caller: a translated SQLite error, or the exception of the item itself."""
    cause = exc.cause if isinstance(exc, _CommitError) else exc
    if isinstance(cause, apsw.Error) and ends_transaction(cause):
        return translate(cause, path, committing=cause is not exc)
    return cause


def _roll_back(tx: Transaction, path: str) -> None:
    tx.rolled_back()
    tx.take_back()
    try:
        if tx.db.in_transaction:
            tx.db.execute("ROLLBACK")
    except apsw.Error as exc:
        raise error("store_failed", path=path, reason=f"ROLLBACK failed: {exc}") from exc


def _fail_all(items: Sequence[Item[Any]], failure: BaseException) -> Fatal | None:
    for item in items:
        item.result = None
        item.error = copy_error(failure) if isinstance(failure, PosthouseError) else failure
    return failure if isinstance(failure, Fatal) else None


R = TypeVar("R")


class DirectWriter(Generic[TxT]):
    """Commits one unit of work at a time on the calling thread."""

    def __init__(self, tx: TxT, clock: Clock, path: str, *, on_fatal: Callable[[Fatal], None]) -> None:
        self._tx = tx
        self._clock = clock
        self._path = path
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self._holder = 0
        self._closed_with: PosthouseError | None = None
        self._is_closed = False

    def run(self, work: Callable[[TxT], R]) -> R:
        """Commit `work` and return its result; `work` must not use this writer."""
        item = Item(work)
        thread = threading.get_ident()
        if self._holder == thread:
            raise RuntimeError("a transaction was started inside a transaction of the same store")
        with self._lock:
            if self._closed_with is not None:
                raise copy_error(self._closed_with)
            self._holder = thread
            try:
                fatal = run_items(self._tx, [item], self._clock, self._path)
            finally:
                self._holder = 0
            if fatal:
                self._closed_with = fatal
        if fatal:
            self._on_fatal(fatal)
        if item.error is not None:
            raise item.error
        result: R = item.result
        return result

    def set_patience(self, limit_ms: int) -> None:
        """Limit how long a transaction blocks the calling thread while another process holds the write lock."""
        with self._lock:
            if not self._is_closed:
                self._tx.db.set_busy_handler(busy_handler(limit_ms) if limit_ms else None)

    def refuse(self, fatal: Fatal) -> None:
        """Fail every later call with `fatal`: another part of the store found that the disk failed."""
        with self._lock:
            self._closed_with = fatal

    @property
    def state(self) -> str:
        """Return "open", "failed" or "closed"."""
        if self._closed_with is None:
            return "open"
        return "failed" if isinstance(self._closed_with, Fatal) else "closed"

    def statistics(self) -> dict[str, str]:
        """Return the state."""
        return {"state": self.state}

    def close(self) -> None:
        """Close the connection; later calls raise store_closed."""
        with self._lock:
            if isinstance(self._closed_with, Fatal) and not self._is_closed:
                skip_checkpoint_on_close(self._tx.db)
            if self._closed_with is None:
                self._closed_with = error("store_closed", path=self._path)
            self._is_closed = True
            self._tx.db.close()


_SIZES = (64, *range(16, 0, -1))  # few statements to prepare; any number of rows needs few executions


class BulkInsert:
    """An INSERT of any number of rows; `head` ends with VALUES, `tail` may hold an ON CONFLICT clause.

    Each step of a statement releases the interpreter lock and has to acquire it again; next to a busy event loop that
    costs more than the row itself. So rows are written in groups of fixed sizes, each size one prepared statement.
    """

    def __init__(self, head: str, columns: int, tail: str = "") -> None:
        row = "(" + ", ".join("?" * columns) + ")"
        self._texts = {size: f"{head} {', '.join([row] * size)} {tail}" for size in _SIZES}

    def run(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows in order."""
        start, left = 0, len(rows)
        if (whole := self._texts.get(left)) is not None:
            db.execute(whole, tuple(chain.from_iterable(rows)))
            return
        for size in _SIZES:
            text = self._texts[size]
            while left >= size:
                db.execute(text, tuple(chain.from_iterable(rows[start : start + size])))
                start += size
                left -= size
