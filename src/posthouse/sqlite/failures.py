"""What a failing SQLite call means for the caller and for the process.

Room may come back (Transient); a disk that fails under a commit or a sync may have lost what it acknowledged
before, so nothing can be promised any more (Fatal).
"""

from __future__ import annotations

import apsw

from posthouse.model.errors import PosthouseError, error

#: The wal-index could not grow: out of room, and nothing of the transaction has been synced yet.
_NO_ROOM_FOR_INDEX = {apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_SHMOPEN}


def is_fatal(exc: apsw.Error, *, committing: bool) -> bool:
    """Tell whether the process must end: an I/O error, unless it only kept a transaction from starting."""
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError):
        return True
    return isinstance(exc, apsw.IOError) and (committing or getattr(exc, "extendedresult", 0) not in _NO_ROOM_FOR_INDEX)


def ends_transaction(exc: BaseException) -> bool:
    """Tell whether SQLite may have rolled back the whole transaction, not just the statement."""
    return isinstance(exc, apsw.FullError | apsw.NoMemError | apsw.BusyError | apsw.IOError | apsw.CorruptError)


def translate(exc: apsw.Error, path: str, *, committing: bool = False) -> PosthouseError:
    """Return the posthouse error for a failed SQLite call."""
    if is_fatal(exc, committing=committing):
        return error("store_failed", path=path, reason=str(exc))
    if isinstance(exc, apsw.BusyError | apsw.LockedError):
        return error("store_locked", path=path)
    if isinstance(exc, apsw.FullError | apsw.NoMemError | apsw.IOError):
        return error("store_full", path=path, reason=str(exc))
    if isinstance(exc, apsw.InterruptError):
        return error("store_read_timeout", seconds="?")
    return error("internal", reason=str(exc))
