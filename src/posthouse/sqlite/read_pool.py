"""A small pool of read-only connections for short reads.

A read runs on a thread of the pool inside one read transaction and returns plain values; no cursor ever waits for a
slow socket. A read that exceeds its time is cancelled (store_read_timeout), because an open snapshot blocks the
checkpoint and lets the WAL grow: the Checkpointer calls `end_stalled`. A connection returns to the pool only without
a snapshot, so that the next read sees everything committed by then.
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

from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.connection import ends_transaction, open_reader, skip_checkpoint_on_close, translate

R = TypeVar("R")
log = get_log(__name__)

READ_TIMEOUT_S = 10.0  # far above any keyset read; a longer read blocks the checkpoint
_CHECK_EVERY_S = 0.2


class _Reading:
    """A read in progress."""

    __slots__ = ("db", "is_ended", "started_ns")

    def __init__(self, db: apsw.Connection, started_ns: int) -> None:
        self.db = db
        self.started_ns = started_ns
        self.is_ended = False


class ReadPool:
    """Read-only connections, each used for one read at a time."""

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
        self._mutex = threading.Condition()
        self._idle: list[apsw.Connection] = []
        self._running: set[_Reading] = set()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"reader {path.name}")
        self._is_closed = False
        self._damaged_reads = 0

    async def run(self, read: Callable[[apsw.Connection], R]) -> R:
        """Run `read` on a thread of the pool, in one snapshot, and return its result."""
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
            raise self._to_caller_error(reading, exc) from exc
        finally:
            self._finish(reading)

    def end_stalled(self) -> int:
        """Cancel the reads that exceed their time; return the number that this call cancelled."""
        bound_ns = self._clock.boot_ns() - round(self._timeout_s * 1e9)
        with self._mutex:
            stalled = [reading for reading in self._running if reading.started_ns < bound_ns]
            fresh = sum(not reading.is_ended for reading in stalled)
            for reading in stalled:
                reading.is_ended = True
        for reading in stalled:
            _interrupt(reading.db)
        return fresh

    def close(self) -> None:
        """Wait for running reads, at most their timeout, and close; later calls raise store_closed."""
        with self._mutex:
            self._is_closed = True
            while any(not reading.is_ended for reading in self._running):
                self._mutex.wait(_CHECK_EVERY_S)
                self.end_stalled()
            idle, self._idle = self._idle, []
        self._threads.shutdown(wait=False)
        for db in idle:
            db.close()

    def statistics(self) -> dict[str, int]:
        """Return the number of open connections and of running reads."""
        with self._mutex:
            return {
                "open": len(self._idle) + len(self._running),
                "running": len(self._running),
                "damaged_reads": self._damaged_reads,
            }

    def _begin(self) -> _Reading:
        with self._mutex:
            if self._is_closed:
                raise error("store_closed", path=str(self._path))
            db = self._idle.pop() if self._idle else None
        reading = _Reading(db or self._open(), self._clock.boot_ns())
        with self._mutex:
            self._running.add(reading)
        return reading

    def _open(self) -> apsw.Connection:
        db = open_reader(self._path, vfs=self._vfs)
        skip_checkpoint_on_close(db)
        return db

    def _finish(self, reading: _Reading) -> None:
        is_clean = _leave_snapshot(reading.db)
        with self._mutex:
            self._running.discard(reading)
            is_kept = is_clean and not reading.is_ended and not self._is_closed and len(self._idle) < self._size
            if is_kept:
                self._idle.append(reading.db)
            self._mutex.notify_all()
        if not is_kept:
            reading.db.close(True)

    def _to_caller_error(self, reading: _Reading, exc: apsw.Error) -> Exception:
        """Return the error for the caller; a mistake in its own SQL stays an apsw error."""
        if reading.is_ended:
            return error("store_read_timeout", seconds=self._timeout_s)
        if isinstance(exc, apsw.ReadOnlyError) or not ends_transaction(exc):
            return exc
        failure = translate(exc, str(self._path))
        if failure.code == "store_damaged":
            with self._mutex:
                self._damaged_reads += 1
            log.error("store_damaged", path=str(self._path), reason=str(exc))
        return failure


def _interrupt(db: apsw.Connection) -> None:
    """Interrupt a read and close its connection, which releases its snapshot."""
    with contextlib.suppress(apsw.ConnectionClosedError):
        db.interrupt()
        with contextlib.suppress(
            apsw.ThreadingViolationError
        ):  # the read is inside SQLite, where the interrupt ends it
            db.close(True)


def _leave_snapshot(db: apsw.Connection) -> bool:
    """End the read transaction; return True if the connection holds no snapshot."""
    try:
        if db.in_transaction:
            db.execute("ROLLBACK")
        # An unfinished SELECT that is still referenced keeps its snapshot after the ROLLBACK.
        return db.txn_state("main") == apsw.SQLITE_TXN_NONE
    except apsw.Error:
        return False
