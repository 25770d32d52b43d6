"""What a failing SQLite call means for the caller and for the process.

Room may come back (Transient); a disk that fails under a commit or a sync may have lost what it acknowledged
before, and a database file that was moved away takes what is written to it along, so nothing can be promised any
more (Fatal).
"""

from __future__ import annotations

import apsw

from posthouse.model.errors import PosthouseError, error

#: The wal-index could not grow: out of room, and nothing of the transaction has been synced yet.
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
    """Tell whether the process must end: an I/O error, unless it only kept a transaction from starting."""
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError | apsw.ReadOnlyError):
        return True
    return isinstance(exc, apsw.IOError) and (committing or getattr(exc, "extendedresult", 0) not in _NO_ROOM_FOR_INDEX)


def ends_transaction(exc: BaseException) -> bool:
    """Tell whether SQLite may have rolled back the whole transaction, not just the statement."""
    return isinstance(exc, _ENDING)


def translate(exc: apsw.Error, path: str, *, committing: bool = False) -> PosthouseError:
    """Return the posthouse error for a failed SQLite call."""
    if is_fatal(exc, committing=committing):
        return error("store_failed", path=path, reason=str(exc))
    if isinstance(exc, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return error("store_locked", path=path)
    if isinstance(exc, apsw.FullError | apsw.NoMemError | apsw.IOError):
        return error("store_full", path=path, reason=str(exc))
    return error("internal", reason=str(exc))


def again(failure: PosthouseError) -> PosthouseError:
    """Return a copy to raise: one exception raised for many callers would keep the traceback of each."""
    return type(failure)(failure.spec, failure.fields, failure.hint)
