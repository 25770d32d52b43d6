"""Short transactions on the calling thread, over one locked connection per process.

For the bus, whose NORMAL commits cost microseconds: handing them to a thread would cost more than the commit.
The promises are those of the group-commit writer, for one item at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.sqlite.connection import leave_wal
from posthouse.sqlite.failures import again
from posthouse.sqlite.transaction import Item, TxT, run_items

R = TypeVar("R")


class DirectWriter(Generic[TxT]):
    """Commits one piece of work at a time on the thread that asks for it."""

    def __init__(self, tx: TxT, clock: Clock, path: str, *, on_fatal: Callable[[Fatal], None]) -> None:
        self._tx = tx
        self._clock = clock
        self._path = path
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self._holder = 0
        self._refusal: PosthouseError | None = None
        self._is_closed = False

    def run(self, work: Callable[[TxT], R]) -> R:
        """Commit `work` and return its result; it must not call back into this writer."""
        item = Item(work)
        thread = threading.get_ident()
        if self._holder == thread:
            raise RuntimeError("a transaction was started inside a transaction of the same store")
        with self._lock:
            if self._refusal is not None:
                raise again(self._refusal)
            self._holder = thread
            try:
                fatal = run_items(self._tx, [item], self._clock, self._path)
            finally:
                self._holder = 0
            if fatal:
                self._refusal = fatal
        if fatal:
            self._on_fatal(fatal)
        if item.error is not None:
            raise item.error
        result: R = item.result
        return result

    def refuse(self, fatal: Fatal) -> None:
        """Answer every later call with `fatal`: another part of the store found that the disk failed."""
        with self._lock:
            self._refusal = fatal

    @property
    def state(self) -> str:
        """Return "open", "failed" or "closed"."""
        if self._refusal is None:
            return "open"
        return "failed" if isinstance(self._refusal, Fatal) else "closed"

    def close(self) -> None:
        """Close the connection; later calls get store_closed."""
        with self._lock:
            if isinstance(self._refusal, Fatal) and not self._is_closed:
                leave_wal(self._tx.db)
            if self._refusal is None:
                self._refusal = error("store_closed", path=self._path)
            self._is_closed = True
            self._tx.db.close()
