"""The checkpoint thread: copies the WAL into the database file, on its own connection, in parallel with the writer.

A passive pass copies as much as possible without blocking readers or the writer. A restarting pass then copies the
few pages written meanwhile, blocking the writer for that moment, so that the next commit overwrites the WAL from its
start: a growing file makes every sync twice as expensive. For the same reason the thread extends the file of a growing
WAL in advance, with zeros after its frames, which SQLite ignores. An open read snapshot prevents a restart and lets the
WAL grow; above a certain length the thread calls `end_stalled_reads` (ReadPool.end_stalled), so that a stalled reader
cannot make it grow forever, and truncates the excess. Each process ends its own stalled readers; programs outside
posthouse have to keep their reads short. A failed sync here is as fatal as a failed sync of a commit.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from posthouse.log import get_log
from posthouse.model.errors import Fatal, Transient
from posthouse.sqlite.connection import (
    WAL_KEPT_BYTES,
    Durability,
    busy_handler,
    open_writer,
    skip_checkpoint_on_close,
    translate,
)
from posthouse.storage.batch import as_fatal

log = get_log(__name__)

RESTART_AT_PAGES = 1_000  # 4 MiB of WAL: where SQLite itself would checkpoint
OVERGROWN_AT_PAGES = 16_000  # 64 MiB: long enough to end stalled readers that prevent a restart
_FRAME_BYTES = 4_096 + 24  # a page and its header in the WAL
_BUSY_MS = 20  # longest time that a pass blocks the writer while it waits for readers
_CHECK_EVERY_S = 1.0
_EXTEND_AT_PAGES = 32  # a shorter WAL is not extended: a store with few writes keeps it short
_EXTEND_TIMES = 8  # an extended WAL is this many times as long, so a long one took few extensions
_EXTEND_BYTES = 1024 * 1024  # written at once: the writer waits for them, well below a millisecond
_FREE_TIMES = 32  # times the new length must be free on the disk, so that the WAL takes no room that others need


class Checkpointer:
    """Checkpoints one database on its own thread."""

    def __init__(
        self,
        path: Path,
        durability: Durability,
        *,
        end_stalled_reads: Callable[[], int],
        on_fatal: Callable[[Fatal], None],
        restart_at_pages: int | None = None,
        overgrown_at_pages: int = OVERGROWN_AT_PAGES,
        vfs: str | None = None,
    ) -> None:
        self._path = path
        self._wal_path = path.with_name(path.name + "-wal")
        self._end_stalled_reads = end_stalled_reads
        self._on_fatal = on_fatal
        self._restart_at_pages = restart_at_pages or RESTART_AT_PAGES
        self._overgrown_at_pages = overgrown_at_pages
        self._wake = threading.Event()
        self._is_closing = False
        self._is_due = False
        self._is_behind = False
        #: of the WAL, after the last commit
        self._pages = 0
        #: where a WAL of length 0 is extended: never without syncs, or in a file system that only SQLite can reach
        self._first_extension = _EXTEND_AT_PAGES if durability is Durability.FULL and vfs is None else sys.maxsize
        self._extend_at_pages = self._first_extension
        self._wake_at_pages = self._restart_at_pages
        self._passes = 0
        self._restarts = 0
        self._db = open_writer(path, durability, vfs=vfs)
        self._db.set_busy_handler(busy_handler(_BUSY_MS))
        self._thread = threading.Thread(target=self._serve, name=f"checkpoint {path.name}", daemon=True)
        self._thread.start()

    def watch(self, db: apsw.Connection) -> None:
        """Observe the length of the WAL after every commit of `db`."""
        db.set_wal_hook(self._committed)

    def close(self) -> None:
        """End the thread; the last connection to close checkpoints the rest."""
        self._is_closing = self._is_due = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def wal_bytes(self) -> int:
        """Return the size of the WAL file now."""
        try:
            return self._wal_path.stat().st_size
        except FileNotFoundError:
            return 0

    def statistics(self) -> dict[str, int]:
        """Return the size of the WAL, and how often it was copied and restarted."""
        return {"wal_bytes": self.wal_bytes(), "passes": self._passes, "restarts": self._restarts}

    def _committed(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        if pages < self._restart_at_pages:  # the WAL was restarted
            self._wake_at_pages = self._restart_at_pages
        elif pages >= self._wake_at_pages:
            self._is_due = True
            self._wake.set()
        if pages > self._extend_at_pages:
            self._wake.set()
        return apsw.SQLITE_OK

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                self._wake.wait(_CHECK_EVERY_S)
                self._wake.clear()
                if self._pages > self._extend_at_pages:
                    self._extend()
                if self._is_due or self._is_behind or self._is_overgrown():
                    self._is_due = False
                    self._is_behind = not self._checkpoint()
        except Exception as exc:  # noqa: BLE001 - without this thread the WAL would grow unnoticed
            failure = as_fatal(exc, str(self._path), "checkpoint")
            log.error("checkpoint_failed", path=str(self._path), reason=str(failure))
            skip_checkpoint_on_close(self._db)
            self._on_fatal(failure)
        finally:
            self._db.close()

    def _extend(self) -> None:
        """Make the file of the WAL longer than its frames; if the disk has no room, leave it as it is."""
        most = self._restart_at_pages + self._restart_at_pages // 4  # commits continue while a pass runs
        pages = min(self._pages * _EXTEND_TIMES, most)
        self._extend_at_pages = sys.maxsize if pages == most else pages // 2
        if shutil.disk_usage(self._path.parent).free < pages * _FRAME_BYTES * _FREE_TIMES:
            return
        with self._wal_path.open("r+b", buffering=0) as file:
            while not self._is_closing and self._append_zeros(file.fileno(), pages * _FRAME_BYTES):
                os.fsync(file.fileno())  # now, so that no commit has to

    def _append_zeros(self, file: int, size: int) -> bool:
        """Append some zeros while no connection writes; return False if the file has that size, or cannot get it."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:  # tried again when the WAL is longer
            return False
        try:
            present = os.fstat(file).st_size
            missing = min(size - present, _EXTEND_BYTES)
            return missing > 0 and os.pwrite(file, bytes(missing), present) == missing
        except OSError as failure:
            log.info("wal_not_extended", path=str(self._path), reason=str(failure))
            return False
        finally:
            self._db.execute("ROLLBACK")

    def _is_overgrown(self) -> bool:
        """Return True if the WAL is long, even if another process wrote it: its commits do not wake this thread."""
        return self.wal_bytes() > max(self._overgrown_at_pages * _FRAME_BYTES, WAL_KEPT_BYTES)

    def _checkpoint(self) -> bool:
        """Run the passes that the WAL needs; return False if another try is urgent."""
        pages = 0
        try:
            pages = self._pass(apsw.SQLITE_CHECKPOINT_PASSIVE)
            is_long = self.wal_bytes() > WAL_KEPT_BYTES
            self._pass(apsw.SQLITE_CHECKPOINT_TRUNCATE if is_long else apsw.SQLITE_CHECKPOINT_RESTART)
            self._restarts += 1
            if is_long:
                self._extend_at_pages = self._first_extension
            return True
        except Transient:  # a reader or a full disk prevents it: a later pass tries again
            if pages < self._overgrown_at_pages and not self._is_overgrown():
                return True
        if ended := self._end_stalled_reads():
            log.warning("stalled_reads_ended", path=str(self._path), reads=ended)
        return False

    def _pass(self, mode: int) -> int:
        """Run one pass and return the length of the WAL in pages."""
        try:
            pages, _done = self._db.wal_checkpoint(mode=mode)
        except apsw.Error as exc:
            raise translate(exc, str(self._path), committing=True) from exc
        self._passes += 1
        self._wake_at_pages = pages + self._restart_at_pages
        return pages
