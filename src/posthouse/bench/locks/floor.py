"""The floor: what one operation on a lock writes, committed bare by apsw, one after the other, synced each time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from posthouse.journal.append import SQL as JOURNAL
from posthouse.model.clock import SystemClock
from posthouse.relay.locks.table import SQL as LOCKS
from posthouse.relay.store.sqlite import SqliteStore

_OWNER = "ed25519:" + "0" * 64
_BODY = {
    "owner": _OWNER,
    "token": 1,
    "lease_ms": 30_000,
    "granted_boot_ns": 10**15,
    "deadline_boot_ns": 10**15,
    "run_id": "0" * 16,
}
_TEXT = msgspec.json.encode(_BODY).decode()


class CommitFloor:
    """A lock's row, its record and the journal's counter, changed by one connection alone."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._token = 1
        db.execute(LOCKS.add_lock, (_OWNER, 1, 30_000, 0, 0, 0, "main", "floor"))

    def rate(self, commits: int) -> float:
        """Commit so many times and return how many per second."""
        execute, seq = self._db.execute, self._db.execute(JOURNAL.head).get
        now_ns = SystemClock().wall_ns()
        started = time.perf_counter()
        for number in range(seq + 1, seq + 1 + commits):
            self._token += 1
            execute("BEGIN IMMEDIATE")
            execute(LOCKS.change_lock, (_OWNER, self._token, 30_000, now_ns, 0, 0, "main", "floor"))
            execute(JOURNAL.append, (number, now_ns, "lock.acquired", "main", _OWNER, "floor", _TEXT))
            execute(JOURNAL.add_bytes, (len(_TEXT),))
            execute("COMMIT")
        return commits / (time.perf_counter() - started)


@contextmanager
def commit_floor(path: Path) -> Iterator[CommitFloor]:
    """A database with the relay's tables that only this connection writes."""
    SqliteStore(path, SystemClock()).close()
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        yield CommitFloor(db)
    finally:
        db.close()
