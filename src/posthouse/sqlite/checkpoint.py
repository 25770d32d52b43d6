"""The checkpoint thread: moves the WAL into the database file beside the writer, never on it.

A passive pass copies what it can without blocking anybody. When the WAL is large a restarting pass follows, which
holds the writer back only for the little that is left; if readers stand in its way for longer than their time
they are ended, so that a stalled reader cannot make the WAL grow for ever. A sync that fails here is as fatal as
one that fails under a commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import structlog

from posthouse.model.errors import Fatal, Transient
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.failures import translate

log = structlog.get_logger(__name__)

PASSIVE_AT_PAGES = 1_000  # 4 MiB of WAL: where SQLite itself would checkpoint
RESTART_AT_PAGES = 16_000  # 64 MiB: worth holding the writer back for a moment
_PATIENCE_MS = 100  # how long a restarting pass may hold the writer while it waits for readers
_LOOK_EVERY_S = 1.0


class Checkpointer:
    """Checkpoints one database on a thread of its own."""

    def __init__(
        self,
        path: Path,
        durability: Durability,
        *,
        end_stalled_reads: Callable[[], int],
        on_fatal: Callable[[Fatal], None],
        restart_at_pages: int = RESTART_AT_PAGES,
        vfs: str | None = None,
    ) -> None:
        self._path = path
        self._durability = durability
        self._end_stalled_reads = end_stalled_reads
        self._on_fatal = on_fatal
        self._restart_at_pages = restart_at_pages
        self._vfs = vfs
        self._poked = threading.Event()
        self._is_closing = False
        self._is_behind = False
        self._poke_at_pages = PASSIVE_AT_PAGES
        self._passes = 0
        self._thread = threading.Thread(target=self._serve, name=f"checkpoint {path.name}", daemon=True)
        self._thread.start()

    def watch(self, db: apsw.Connection) -> None:
        """Have every commit of `db` tell how long the WAL is."""
        db.set_wal_hook(self._committed)

    def close(self) -> None:
        """End the thread; the last connection to close checkpoints the rest."""
        self._is_closing = True
        self._poked.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def wal_bytes(self) -> int:
        """Return the size of the WAL file now."""
        try:
            return self._path.with_name(self._path.name + "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def statistics(self) -> dict[str, int]:
        return {"wal_bytes": self.wal_bytes(), "passes": self._passes}

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        if pages < PASSIVE_AT_PAGES:  # the WAL began anew
            self._poke_at_pages = PASSIVE_AT_PAGES
        elif pages >= self._poke_at_pages:
            self._poked.set()
        return apsw.SQLITE_OK

    def _serve(self) -> None:
        db = open_writer(self._path, self._durability, vfs=self._vfs)
        db.set_busy_timeout(_PATIENCE_MS)
        try:
            while not self._is_closing:
                if self._poked.wait(_LOOK_EVERY_S) or self._is_behind:
                    self._poked.clear()
                    self._is_behind = not self._checkpoint(db)
        except Fatal as failure:
            log.error("checkpoint_failed", path=str(self._path), reason=str(failure))
            self._on_fatal(failure)
        finally:
            db.close()

    def _checkpoint(self, db: apsw.Connection) -> bool:
        """Run the passes the WAL needs; return whether nothing is left to try again."""
        try:
            pages, done = self._pass(db, apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages < self._restart_at_pages:
                return True
            pages, done = self._pass(db, apsw.SQLITE_CHECKPOINT_RESTART)
        except Transient:  # somebody stood in the way, or there is no room: the next look tries again
            pages, done = 1, 0
        if done == pages:
            return True
        if ended := self._end_stalled_reads():
            log.warning("stalled_reads_ended", path=str(self._path), reads=ended)
        return False

    def _pass(self, db: apsw.Connection, mode: int) -> tuple[int, int]:
        try:
            pages, done = db.wal_checkpoint(mode=mode)
        except apsw.Error as exc:
            raise translate(exc, str(self._path), committing=True) from exc
        self._passes += 1
        self._poke_at_pages = done + PASSIVE_AT_PAGES
        return pages, done
