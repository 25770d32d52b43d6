"""One write transaction: a savepoint per item, so that one item's failure leaves its siblings alone.

`run_items` is the only way rows get into a store. It keeps two promises: an item's rows are all there or not at
all, and an item has its answer only after COMMIT returned. What an error did to the transaction is asked of
SQLite (`in_transaction`), never assumed: FULL, NOMEM and some BUSY roll back everything, not the savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.sqlite.failures import ends_transaction, translate


class Transaction:
    """What an item sees of the transaction it runs in; one object serves a connection for its life."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        #: The wall time of this batch; read once per batch, never goes back.
        self.now_ns = 0

    def begin(self, wall_ns: int) -> None:
        """Start a batch; called right after BEGIN."""
        self.now_ns = max(self.now_ns, wall_ns)

    def mark(self) -> Any:
        """Return what `rewind` needs to undo the in-memory effects of one item."""
        return None

    def rewind(self, mark: Any) -> None:
        """Forget the in-memory effects of the item that started at `mark`."""

    def before_commit(self) -> None:
        """Write what the batch as a whole owes, such as counters."""

    def rolled_back(self) -> None:
        """Forget everything remembered since BEGIN."""


TxT = TypeVar("TxT", bound=Transaction)


class Item(Generic[TxT]):
    """A unit of work and, once its batch has ended, its answer."""

    __slots__ = ("error", "result", "work")

    def __init__(self, work: Callable[[TxT], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None


class _RolledBackError(Exception):
    """The whole transaction is gone, with the error that did it."""

    def __init__(self, cause: apsw.Error) -> None:
        self.cause = cause


def run_items(tx: TxT, items: Sequence[Item[TxT]], clock: Clock, path: str) -> Fatal | None:
    """Run `items` in one transaction and leave an answer in each; return the error that must end the process."""
    try:
        _attempt(tx, items, clock, path)
    except _RolledBackError as rolled_back:
        if len(items) > 1:
            return _run_singly(tx, items, clock, path)
        _fail_all(items, translate(rolled_back.cause, path))
    except PosthouseError as failure:
        _fail_all(items, failure)
        if isinstance(failure, Fatal):
            return failure
    return None


def _run_singly(tx: TxT, items: Sequence[Item[TxT]], clock: Clock, path: str) -> Fatal | None:
    for position, item in enumerate(items):
        if fatal := run_items(tx, [item], clock, path):
            _fail_all(items[position:], fatal)
            return fatal
    return None


def _attempt(tx: TxT, items: Sequence[Item[TxT]], clock: Clock, path: str) -> None:
    db = tx.db
    try:
        db.execute("BEGIN IMMEDIATE")
        tx.begin(clock.wall_ns())
        for item in items:
            _run_item(tx, item)
        tx.before_commit()
    except apsw.Error as exc:
        _roll_back(tx)
        if ends_transaction(exc):
            failure = translate(exc, path)
            raise (failure if isinstance(failure, Fatal) or _is_locked_out(exc) else _RolledBackError(exc)) from exc
        raise translate(exc, path) from exc
    except BaseException:
        _roll_back(tx)
        raise
    _commit(tx, path)


def _run_item(tx: TxT, item: Item[TxT]) -> None:
    db = tx.db
    mark = tx.mark()
    db.execute("SAVEPOINT item")
    try:
        item.result = item.work(tx)
        item.error = None
    except Exception as exc:
        if not db.in_transaction or (isinstance(exc, apsw.Error) and ends_transaction(exc)):
            raise _as_sqlite(exc) from exc
        db.execute("ROLLBACK TO item")
        tx.rewind(mark)
        item.result, item.error = None, exc
    db.execute("RELEASE item")


def _as_sqlite(exc: Exception) -> apsw.Error:
    """Return the SQLite error that ended the transaction, also when the item wrapped it in one of its own."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, apsw.Error):
        cause = cause.__cause__ or cause.__context__
    return cause if isinstance(cause, apsw.Error) else apsw.FullError(str(exc))


def _commit(tx: Transaction, path: str) -> None:
    try:
        tx.db.execute("COMMIT")
    except apsw.Error as exc:
        _roll_back(tx)
        raise translate(exc, path, committing=True) from exc


def _roll_back(tx: Transaction) -> None:
    tx.rolled_back()
    if tx.db.in_transaction:
        tx.db.execute("ROLLBACK")


def _is_locked_out(exc: apsw.Error) -> bool:
    return isinstance(exc, apsw.BusyError)


def _fail_all(items: Sequence[Item[Any]], failure: PosthouseError) -> None:
    for item in items:
        item.result, item.error = None, failure
