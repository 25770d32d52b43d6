"""The items of one write transaction and its in-memory state; independent of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from posthouse.model.errors import Fatal, PosthouseError, error


class BatchState:
    """The state of a transaction in memory: its time and the calls that undo an item."""

    def __init__(self) -> None:
        #: Wall time of this batch: read once per batch, never decreases.
        self.now_ns = 0
        #: The clock's own time, for deadlines and ages: it follows the clock, even backwards.
        self.wall_ns = 0
        #: Calls that undo in-memory effects if the rows of the current item are rolled back.
        self.undo: list[Callable[[], None]] = []

    def begin(self, wall_ns: int) -> None:
        """Start a batch; called right after BEGIN."""
        self.wall_ns = wall_ns
        self.now_ns = max(self.now_ns, wall_ns)

    def take_back(self, undone_from: int = 0) -> None:
        """Make the calls in `undo`, newest first, until only the given number is left."""
        while len(self.undo) > undone_from:
            self.undo.pop()()

    def mark(self) -> Any:
        """Return the state that `rewind` needs to undo the in-memory effects of one item."""
        return None

    def rewind(self, mark: Any) -> None:
        """Undo the in-memory effects of the item that started at `mark`."""

    def before_commit(self) -> None:
        """Write the rows that belong to the whole batch, such as counters."""

    def committed(self) -> None:
        """Keep the state of the committed batch; called right after COMMIT."""

    def rolled_back(self) -> None:
        """Discard all in-memory state since BEGIN."""

    def take_news(self) -> Any:
        """Return news about commits of other processes since the last call, or None if there is none."""
        return None


AnyTx = TypeVar("AnyTx")


class Item(msgspec.Struct, Generic[AnyTx], eq=False):
    """A unit of work and, once its batch has ended, its result or error."""

    work: Callable[[AnyTx], Any]
    result: Any = None
    error: BaseException | None = None


def as_fatal(defect: BaseException, path: str, thread: str) -> Fatal:
    """Return the error for an exception that ended the store's `thread`: without it the store cannot continue."""
    if isinstance(defect, Fatal):
        return defect
    reason = str(defect) if isinstance(defect, PosthouseError) else f"the {thread} thread broke: {defect!r}"
    failure = error("store_failed", path=path, reason=reason)
    assert isinstance(failure, Fatal)
    return failure
