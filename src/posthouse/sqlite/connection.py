"""Open SQLite databases with one library, one set of pragmas and private files; translate the errors of SQLite.

Every connection of posthouse is opened here. The file is created with mode 0600 before SQLite opens it. The journal
mode is always WAL; the caller chooses the durability: FULL survives power loss, NORMAL the crash of any process.
Checkpoints never run on a writing connection (checkpoint.py). SQLite before 3.51.3 can corrupt a WAL database, so an
older library is a defect of the installation. A full disk is Transient; an I/O error during a commit or sync, or a
database file that was moved, is Fatal: acknowledged data may be lost.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from posthouse.files import fsync_dir, open_nofollow, unusable
from posthouse.model.errors import PosthouseError, error

SAFE_VERSION = (3, 51, 3)


def library_version() -> tuple[int, int, int]:
    """Return the version of the SQLite library in use."""
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    return major, minor, patch


#: The wal-index could not grow because the disk is full; nothing of the transaction has been synced yet.
_NO_ROOM_FOR_INDEX = {apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_SHMOPEN}
_ENDING = (
    apsw.BusyError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)


def is_fatal(exc: apsw.Error, *, committing: bool) -> bool:
    """Return True if the process must end: an I/O error, unless it only kept a transaction from starting."""
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError | apsw.ReadOnlyError):
        return True
    return isinstance(exc, apsw.IOError) and (committing or getattr(exc, "extendedresult", 0) not in _NO_ROOM_FOR_INDEX)


def ends_transaction(exc: BaseException) -> bool:
    """Return True if SQLite may have rolled back the whole transaction, not only the statement."""
    return isinstance(exc, _ENDING)


def translate(exc: apsw.Error, path: str, *, committing: bool = False) -> PosthouseError:
    """Return the posthouse error for a failed SQLite call."""
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError):
        return error("store_damaged", path=path, reason=str(exc))
    if is_fatal(exc, committing=committing):
        return error("store_failed", path=path, reason=str(exc))
    if isinstance(exc, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return error("store_locked", path=path)
    if isinstance(exc, apsw.FullError | apsw.NoMemError | apsw.IOError):
        return error("store_full", path=path, reason=str(exc))
    if isinstance(exc, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        hint = (
            "This user must be able to write to its directory, and open more files: `posthouse doctor` shows the limit."
        )
        return error("store_unusable", path=path, reason=str(exc), hint=hint)
    return error("internal", reason=str(exc))


BUSY_TIMEOUT_MS = 5_000  # a commit of another process takes far less; longer means that it hangs
WAL_KEPT_BYTES = 64 * 1024 * 1024  # a longer WAL (after a stalled reader) is truncated when it restarts
_SHORT_TRIES, _SHORT_PAUSE_S = 50, 0.0002  # most locks are held this briefly: a commit, the end of a checkpoint
_LONG_PAUSE_S = 0.005
_STATEMENTS = 256  # prepared statements cached per connection: more than any store has


class Durability(enum.Enum):
    """What a completed write survives."""

    FULL = "full"
    """Power loss: every commit is synced."""
    NORMAL = "normal"
    """The crash of any process: commits reach the operating system, checkpoints are synced."""


def open_writer(
    path: Path, durability: Durability, *, vfs: str | None = None, may_shrink: bool = False
) -> apsw.Connection:
    """Open `path` for writing, creating it with mode 0600 if it is missing.

    With `may_shrink` a new database can give free pages back to the file system while it is in use; writes cost more.
    """
    path = safe_path(path)
    create_private(path)
    db = _open(path, apsw.SQLITE_OPEN_READWRITE, vfs)
    try:
        if may_shrink and not path.stat().st_size:  # only a database without pages can choose it
            db.pragma("auto_vacuum", "incremental")
        _enter_wal(db, path)
        db.set_busy_handler(busy_handler(BUSY_TIMEOUT_MS))
        db.pragma("synchronous", durability.value)
        db.pragma("fullfsync", True)  # macOS: a plain sync leaves the data in the cache of the drive
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


def skip_checkpoint_on_close(db: apsw.Connection) -> None:
    """Do not checkpoint when `db` is the last connection to close: it cannot write, or must not after a failure."""
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def open_copy(path: Path) -> apsw.Connection:
    """Create `path` for a copy that the caller syncs when it is complete: no journal, no syncs."""
    path = safe_path(path)
    create_private(path)
    db = _open(path, apsw.SQLITE_OPEN_READWRITE, None)
    db.pragma("journal_mode", "off")
    db.pragma("synchronous", "off")
    return db


def safe_path(path: Path) -> Path:
    """Return the path with its directory resolved; refuse a symbolic link at the name itself."""
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
    """Switch to WAL; SQLite itself does not wait when two processes do so at the same time."""
    wait = busy_handler(BUSY_TIMEOUT_MS)
    tries = 0
    while True:
        try:
            db.pragma("journal_mode", "wal")
            return
        except apsw.BusyError as exc:
            if not wait(tries):
                raise error("store_locked", path=str(path)) from exc
            tries += 1


def busy_handler(limit_ms: int) -> Callable[[int], bool]:
    """Return a busy handler that retries often at first: SQLite's own sleeps longer than most locks are held."""
    long_tries = round((limit_ms / 1000 - _SHORT_TRIES * _SHORT_PAUSE_S) / _LONG_PAUSE_S)

    def wait(tries: int) -> bool:
        time.sleep(_SHORT_PAUSE_S if tries < _SHORT_TRIES else _LONG_PAUSE_S)
        return tries < _SHORT_TRIES + long_tries

    return wait


def create_private(path: Path) -> None:
    """Create `path` as an empty file of mode 0600 unless it exists."""
    try:
        os.close(open_nofollow(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    except OSError as exc:
        raise unusable(path, exc) from exc
    fsync_dir(path.parent)
