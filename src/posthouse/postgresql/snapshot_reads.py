"""Reads outside the writer: a few sessions on their own threads, one read-only snapshot for each read.

A read returns plain values; no cursor ever waits for a slow socket. The server cancels a read that takes too long
(store_read_timeout), because an open snapshot keeps dead rows alive. A session that was lost since its last read is
replaced and the read runs again: it has changed nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection, is_of_server, open_reader_session, translate
from posthouse.postgresql.store_url import shown_url

R = TypeVar("R")
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class SnapshotReads:
    """Sessions for reading, each used for one read at a time."""

    def __init__(
        self, url: str, *, size: int = 4, on_connect: Callable[[ServerConnection], object] = lambda _session: None
    ) -> None:
        """Open no session yet; `on_connect` sees each new one and may refuse it with an error."""
        self._url = url
        self._on_connect = on_connect
        self._mutex = threading.Lock()
        self._idle: list[ServerConnection] = []
        self._running = 0
        self._is_closed = False
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="postgresql reader")

    async def run(self, read: Callable[[ServerConnection], R]) -> R:
        """Run `read` on a thread of the pool, in one snapshot, and return its result."""
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, self.run_blocking, read)
        except RuntimeError as exc:  # the threads have been shut down
            raise error("store_closed", path=shown_url(self._url)) from exc
        return await running

    def run_blocking(self, read: Callable[[ServerConnection], R]) -> R:
        """Run `read` on the calling thread, in one snapshot."""
        session, is_new = self._take()
        try:
            return self._read(session, read)
        except psycopg.Error as exc:
            if not is_of_server(exc):
                raise
            if is_new or not session.is_lost:
                raise translate(exc, self._url) from exc
        finally:
            self._give_back(session)
        return self.run_blocking(read)  # each run drops one idle session that was lost

    def close(self) -> None:
        """Wait for running reads and end the sessions; later calls raise store_closed."""
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
        self._threads.shutdown(wait=True)

    def statistics(self) -> dict[str, int]:
        """Return the number of open sessions and of running reads."""
        with self._mutex:
            return {"open": len(self._idle) + self._running, "running": self._running, "damaged_reads": 0}

    def _read(self, session: ServerConnection, read: Callable[[ServerConnection], R]) -> R:
        try:
            with session.pipeline():
                session.queue(_BEGIN)
                result = read(session)
                session.queue("COMMIT")
            return result
        except BaseException:
            if not session.is_lost:
                session.queue("ROLLBACK")
            raise

    def _take(self) -> tuple[ServerConnection, bool]:
        with self._mutex:
            if self._is_closed:
                raise error("store_closed", path=shown_url(self._url))
            self._running += 1
            if self._idle:
                return self._idle.pop(), False
        try:
            return self._open(), True
        except BaseException:
            with self._mutex:
                self._running -= 1
            raise

    def _open(self) -> ServerConnection:
        session = open_reader_session(self._url)
        try:
            self._on_connect(session)
        except BaseException as exc:
            session.close()
            if isinstance(exc, psycopg.Error):
                raise translate(exc, self._url) from exc
            raise
        return session

    def _give_back(self, session: ServerConnection) -> None:
        with self._mutex:
            self._running -= 1
            is_kept = not self._is_closed and not session.is_lost
            if is_kept:
                self._idle.append(session)
        if not is_kept:
            session.close()
