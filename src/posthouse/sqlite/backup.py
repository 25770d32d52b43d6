"""Consistent copies of a running store.

A copy is taken inside one read transaction, so it is the store at one commit, whatever is written meanwhile. It
appears under its name only when it is complete and synced; an existing file is never overwritten. The WAL cannot
restart during the copy: it grows by the bytes written in that time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from posthouse.files import fsync_dir, sync_file
from posthouse.model.errors import error
from posthouse.sqlite.connection import open_copy, open_reader, translate
from posthouse.sqlite.store_lock import shared_store_lock

_PAGES_PER_STEP = 4_096  # 16 MiB between two reports of progress
#: Called with the number of pages copied and the number of all pages.
Progress = Callable[[int, int], None]


def backup_store(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Copy the store at `source`, running or not, to the new file `target`."""
    with shared_store_lock(source):
        db = open_reader(source)
        try:
            copy_database(db, target, progress)
        finally:
            db.close()


def copy_database(db: apsw.Connection, target: Path, progress: Progress | None = None) -> None:
    """Copy the committed state of `db` to the new file `target`."""
    with new_file(target) as temporary:
        _copy(db, temporary, progress)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a name beside `target`; the file written there becomes `target` when the block ends without an error."""
    if target.exists() or target.is_symlink():
        raise error("backup_exists", path=str(target))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        os.link(temporary, target)  # unlike a rename, refuses a file that has appeared in the meantime
        fsync_dir(target.parent)
    except FileExistsError as exc:
        raise error("backup_exists", path=str(target)) from exc
    except apsw.Error as exc:
        raise translate(exc, str(target)) from exc
    finally:
        temporary.unlink(missing_ok=True)


def _copy(db: apsw.Connection, temporary: Path, progress: Progress | None) -> None:
    copy = open_copy(temporary)
    db.execute("BEGIN")
    try:
        db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # takes the snapshot
        with copy.backup("main", db, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_PER_STEP)
                if progress:
                    progress(backup.page_count - backup.remaining, backup.page_count)
        copy.pragma("journal_mode", "delete")  # the copied header says WAL, but a backup is one file
    finally:
        db.execute("ROLLBACK")
        copy.close()
