"""Opening SQLite databases: one library, one set of pragmas, private files, no symbolic links.

Every connection of posthouse is made here. The file is created with mode 0600 before SQLite sees it (its -wal and
-shm copies follow that mode whatever the umask). WAL always; durability is named by the caller, because an answer
that promises survival of power loss needs FULL and one that promises survival of a crash needs NORMAL.
Checkpoints never run on a writing connection: see checkpoint.py.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from posthouse.files import fsync_dir
from posthouse.model.errors import error
from posthouse.sqlite.failures import translate

BUSY_TIMEOUT_MS = 5_000  # another process commits in well under this; longer means it hangs
WAL_KEPT_BYTES = 64 * 1024 * 1024  # a WAL that a stalled reader made larger is cut back when it begins anew
_SHORT_TRIES, _SHORT_PAUSE_S = 50, 0.0002  # a commit or the end of a checkpoint: over in a moment
_LONG_PAUSE_S = 0.005
_STATEMENTS = 256  # prepared statements kept per connection: more than any store has


class Durability(enum.Enum):
    """What an answered write survives."""

    FULL = "full"
    """Power loss: every commit is synced."""
    NORMAL = "normal"
    """The crash of any process: commits reach the operating system, checkpoints are synced."""


def open_writer(path: Path, durability: Durability, *, vfs: str | None = None) -> apsw.Connection:
    """Open `path` for writing, creating it with mode 0600 if it is missing."""
    path = safe_path(path)
    _create_private(path)
    db = _open(path, apsw.SQLITE_OPEN_READWRITE, vfs)
    try:
        _enter_wal(db, path)
        db.set_busy_handler(patience(BUSY_TIMEOUT_MS))
        db.pragma("synchronous", durability.value)
        db.pragma("wal_autocheckpoint", 0)
        db.pragma("journal_size_limit", WAL_KEPT_BYTES)
        db.pragma("foreign_keys", True)
    except apsw.Error as exc:
        db.close()
        raise translate(exc, str(path)) from exc
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """Open an existing database read-only."""
    db = _open(safe_path(path), apsw.SQLITE_OPEN_READONLY, vfs)
    db.pragma("query_only", True)
    return db


def leave_wal(db: apsw.Connection) -> None:
    """Have `db` not checkpoint when it closes last: it cannot write, or must not any more."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def open_copy(path: Path) -> apsw.Connection:
    """Open the new file `path` for a copy that is synced as a whole when it is complete: no journal, no syncs."""
    path = safe_path(path)
    _create_private(path)
    db = _open(path, apsw.SQLITE_OPEN_READWRITE, None)
    db.pragma("journal_mode", "off")
    db.pragma("synchronous", "off")
    return db


def safe_path(path: Path) -> Path:
    """Return the path with its directory resolved, so that only a link planted at the name itself is refused."""
    resolved = path.parent.resolve() / path.name
    if resolved.is_symlink():
        raise error("store_path_unsafe", path=str(path), reason="it is a symbolic link")
    return resolved


def _open(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    try:
        db = apsw.Connection(
            str(path), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs, statementcachesize=_STATEMENTS
        )
    except apsw.CantOpenError as exc:
        reason = str(exc) if path.exists() else "there is no such file"
        raise error("store_path_unsafe", path=str(path), reason=reason) from exc
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    try:
        db.pragma("trusted_schema", False)
        db.pragma("schema_version")
    except apsw.NotADBError as exc:
        db.close()
        raise error("store_not_ours", path=str(path), expected="SQLite", reason=str(exc)) from exc
    except apsw.Error as exc:
        db.close()
        raise translate(exc, str(path)) from exc
    return db


def _enter_wal(db: apsw.Connection, path: Path) -> None:
    """Switch to WAL; SQLite does not wait by itself when two processes do so at the same moment."""
    wait = patience(BUSY_TIMEOUT_MS)
    tries = 0
    while True:
        try:
            db.pragma("journal_mode", "wal")
            return
        except apsw.BusyError as exc:
            if not wait(tries):
                raise error("store_locked", path=str(path)) from exc
            tries += 1


def patience(limit_ms: int) -> Callable[[int], bool]:
    """Return a busy handler that looks often at first: SQLite's own sleeps longer than most locks are held."""
    long_tries = round((limit_ms / 1000 - _SHORT_TRIES * _SHORT_PAUSE_S) / _LONG_PAUSE_S)

    def wait(tries: int) -> bool:
        time.sleep(_SHORT_PAUSE_S if tries < _SHORT_TRIES else _LONG_PAUSE_S)
        return tries < _SHORT_TRIES + long_tries

    return wait


def _create_private(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    except OSError as exc:
        raise error("store_path_unsafe", path=str(path), reason=exc.strerror or str(exc)) from exc
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
    fsync_dir(path.parent)
