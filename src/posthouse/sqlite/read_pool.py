"""A small pool of read-only connections for short reads.

A read runs on a thread of the pool inside one read transaction and returns plain values; no cursor ever waits for
a slow socket. A read that outlives its time is ended (store_read_timeout), because an open snapshot stops the
checkpoint and lets the WAL grow. A connection goes back to the pool only without a snapshot, so that the next read
sees what is committed by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.connection import ends_transaction, open_reader, skip_checkpoint_on_close, translate

R = TypeVar("R")

READ_TIMEOUT_S = 10.0  # far above any keyset read; what takes longer holds the checkpoint back
_LOOK_EVERY_S = 0.2


class _Reading:
    """One read that runs."""

    __slots__ = ("db", "is_ended", "started_ns")

    def __init__(self, db: apsw.Connection, started_ns: int) -> None:
        self.db = db
        self.started_ns = started_ns
        self.is_ended = False


class ReadPool:
    """Read-only connections, lent for one read at a time."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        size: int = 4,
        timeout_s: float = READ_TIMEOUT_S,
        vfs: str | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._size = size
        self._timeout_s = timeout_s
        self._vfs = vfs
        self._gate = threading.Condition()
        self._idle: list[apsw.Connection] = []
        self._running: set[_Reading] = set()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"reader {path.name}")
        self._is_closed = False

    async def run(self, read: Callable[[apsw.Connection], R]) -> R:
        """Run `read` on a thread of the pool, in one snapshot, and return what it returns."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, self.run_blocking, read)
        except RuntimeError as exc:  # the threads have been shut down
            raise error("store_closed", path=str(self._path)) from exc
        return await running

    def run_blocking(self, read: Callable[[apsw.Connection], R]) -> R:
        """Run `read` on the calling thread, in one snapshot."""
        reading = self._begin()
        try:
            reading.db.execute("BEGIN")
            result = read(reading.db)
            if reading.is_ended:
                raise error("store_read_timeout", seconds=self._timeout_s)
            return result
        except apsw.Error as exc:
            raise self._meaning(reading, exc) from exc
        finally:
            self._finish(reading)

    def end_stalled(self) -> int:
        """End the reads that have outlived their time; return how many are ended by this call."""
        bound_ns = self._clock.boot_ns() - round(self._timeout_s * 1e9)
        with self._gate:
            stalled = [reading for reading in self._running if reading.started_ns < bound_ns]
            fresh = sum(not reading.is_ended for reading in stalled)
            for reading in stalled:
                reading.is_ended = True
        for reading in stalled:
            _end(reading.db)
        return fresh

    def close(self) -> None:
        """Wait for the reads that run, no longer than their time, and close; later calls get store_closed."""
        with self._gate:
            self._is_closed = True
            while any(not reading.is_ended for reading in self._running):
                self._gate.wait(_LOOK_EVERY_S)
                self.end_stalled()
            idle, self._idle = self._idle, []
        self._threads.shutdown(wait=False)
        for db in idle:
            db.close()

    def statistics(self) -> dict[str, int]:
        """Return how many connections are open and how many reads run."""
        with self._gate:
            return {"open": len(self._idle) + len(self._running), "running": len(self._running)}

    def _begin(self) -> _Reading:
        with self._gate:
            if self._is_closed:
                raise error("store_closed", path=str(self._path))
            db = self._idle.pop() if self._idle else None
        reading = _Reading(db or self._open(), self._clock.boot_ns())
        with self._gate:
            self._running.add(reading)
        return reading

    def _open(self) -> apsw.Connection:
        db = open_reader(self._path, vfs=self._vfs)
        skip_checkpoint_on_close(db)
        return db

    def _finish(self, reading: _Reading) -> None:
        is_clean = _leave_snapshot(reading.db)
        with self._gate:
            self._running.discard(reading)
            is_kept = is_clean and not reading.is_ended and not self._is_closed and len(self._idle) < self._size
            if is_kept:
                self._idle.append(reading.db)
            self._gate.notify_all()
        if not is_kept:
            reading.db.close(True)

    def _meaning(self, reading: _Reading, exc: apsw.Error) -> Exception:
        """Return what the caller is told; a mistake in its own SQL as it is."""
        if reading.is_ended:
            return error("store_read_timeout", seconds=self._timeout_s)
        is_mistake = isinstance(exc, apsw.ReadOnlyError) or not ends_transaction(exc)
        return exc if is_mistake else translate(exc, str(self._path))


def _end(db: apsw.Connection) -> None:
    """Take the snapshot away from a read, wherever it is."""
    with contextlib.suppress(apsw.ConnectionClosedError):
        db.interrupt()
        with contextlib.suppress(apsw.ThreadingViolationError):  # it is inside SQLite: the interrupt ends it there
            db.close(True)


def _leave_snapshot(db: apsw.Connection) -> bool:
    """End the read transaction; return whether the connection sees nothing of it any more."""
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
        # An unfinished SELECT that somebody still refers to keeps its snapshot beyond the ROLLBACK.
        return db.txn_state("main") == apsw.SQLITE_TXN_NONE
    except apsw.Error:
        return False
