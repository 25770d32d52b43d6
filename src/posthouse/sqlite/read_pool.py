"""A small pool of read-only connections for short reads.

A read runs on a thread of the pool inside one read transaction and returns plain values; no cursor ever waits for
a slow socket. A read that outlives its time is ended (store_read_timeout), because an open snapshot stops the
checkpoint and lets the WAL grow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.failures import translate

R = TypeVar("R")

READ_TIMEOUT_S = 10.0  # far above any keyset read; what takes longer holds the checkpoint back


class ReadPool:
    """Read-only connections, one per thread of the pool."""

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
        self._timeout_s = timeout_s
        self._vfs = vfs
        self._local = threading.local()
        self._gate = threading.Lock()
        self._open: set[apsw.Connection] = set()
        self._started_ns: dict[apsw.Connection, int] = {}
        self._ended: set[apsw.Connection] = set()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"reader {path.name}")
        self._is_closed = False

    async def run(self, read: Callable[[apsw.Connection], R]) -> R:
        """Run `read` on a thread of the pool, in one snapshot, and return what it returns."""
        if self._is_closed:
            raise error("store_closed", path=str(self._path))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.run_blocking, read)

    def run_blocking(self, read: Callable[[apsw.Connection], R]) -> R:
        """Run `read` on the calling thread, in one snapshot."""
        db = self._borrow()
        try:
            with _snapshot(db):
                return read(db)
        except (apsw.InterruptError, apsw.ConnectionClosedError) as exc:
            raise self._ended_error(db) from exc
        except apsw.Error as exc:
            raise translate(exc, str(self._path)) from exc
        finally:
            self._give_back(db)

    def end_stalled(self) -> int:
        """End the reads that have outlived their time; return how many."""
        bound_ns = self._clock.boot_ns() - round(self._timeout_s * 1e9)
        with self._gate:
            stalled = [db for db, started in self._started_ns.items() if started < bound_ns]
            for db in stalled:
                self._ended.add(db)
                self._discard(db)
        for db in stalled:
            db.interrupt()
            db.close(True)
        return len(stalled)

    def close(self) -> None:
        """Finish the reads that run and close the connections; later calls get store_closed."""
        self._is_closed = True
        self._threads.shutdown(wait=True)
        with self._gate:
            connections = list(self._open)
            self._open.clear()
        for db in connections:
            db.close()

    def statistics(self) -> dict[str, int]:
        """Return how many connections are open and how many reads run."""
        with self._gate:
            return {"open": len(self._open), "running": len(self._started_ns)}

    def _borrow(self) -> apsw.Connection:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        with self._gate:
            if self._is_closed:
                raise error("store_closed", path=str(self._path))
            if db is not None and db in self._open:
                self._started_ns[db] = self._clock.boot_ns()
                return db
        db = open_reader(self._path, vfs=self._vfs)
        self._local.db = db
        with self._gate:
            self._open.add(db)
            self._started_ns[db] = self._clock.boot_ns()
        return db

    def _give_back(self, db: apsw.Connection) -> None:
        with self._gate:
            self._started_ns.pop(db, None)
            self._ended.discard(db)

    def _discard(self, db: apsw.Connection) -> None:
        self._open.discard(db)
        self._started_ns.pop(db, None)

    def _ended_error(self, db: apsw.Connection) -> Exception:
        if db in self._ended:
            return error("store_read_timeout", seconds=self._timeout_s)
        return error("store_closed", path=str(self._path))


class _snapshot:  # noqa: N801 - reads as a statement: with _snapshot(db)
    """One read transaction, so that several statements see the same state."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN")

    def __exit__(self, *exc_info: object) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except apsw.ConnectionClosedError:
            if exc_info[0] is None:
                raise
