"""The index as a database of its own, kept up with the journal by whoever runs.

Its place in the journal is stored with the rows it led to, so a process killed at any point leaves it behind, never
wrong. It lags a moment; whoever asks takes in first what is missing. Which waiting messages are in work (cur) is no
fact of the journal: that is looked up in the mailboxes. All methods block and belong on a thread; one at a time
per process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from posthouse.bus.index.feed import apply_records
from posthouse.bus.index.rebuild import file_rows, read_snapshot
from posthouse.bus.index.statements import SQL
from posthouse.bus.results import IndexRow, Metrics
from posthouse.journal.read import read_after
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import INDEX_DONE_KEEP_S, MILLISECOND_NS
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.failures import translate
from posthouse.sqlite.schema import Component, migrate

log = get_log(__name__)

COMPONENT = Component("bus_index", "posthouse.bus.index")
_PAGE = 2_000
_CHECKPOINT_PAGES = 1_000  # this connection checkpoints by itself: it is on a thread and nobody waits for it


class Index:
    """The index of one data directory."""

    def __init__(self, path: Path, root: Path, store: DirectStore, clock: Clock) -> None:
        self._path = path
        self._root = root
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None

    def refresh(self) -> None:
        """Take in what the journal says since the last time."""
        with self._lock, self._translated():
            self._catch_up(self._opened())

    def rebuild(self) -> int:
        """Make the index anew from the files; return how many messages it has found."""
        with self._lock, self._translated():
            return self._rebuild(self._opened())

    def metrics(self) -> Metrics:
        """Count messages by status and subject, as of now."""
        with self._lock, self._translated():
            db = self._opened()
            self._catch_up(db)
            statuses: Any = db.execute(SQL.count_by_status).fetchall()
            subjects: Any = db.execute(SQL.count_by_subject).fetchall()
        return Metrics(sum(count for _, count in statuses), dict(statuses), dict(subjects))

    def find(
        self,
        subject: str | None = None,
        endpoint_hash: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> list[IndexRow]:
        """Return messages by subject, mailbox and status, oldest first."""
        with self._lock, self._translated():
            db = self._opened()
            self._catch_up(db)
            rows: Any = db.execute(SQL.find, (subject, endpoint_hash, status, after, limit)).fetchall()
        return [IndexRow(*row) for row in rows]

    def mailboxes_with_expired(self) -> list[str]:
        """Return the mailboxes in which mail waits that nobody may get any more."""
        with self._lock, self._translated():
            db = self._opened()
            self._catch_up(db)
            rows: Any = db.execute(SQL.expired, (self._clock.wall_ns() // MILLISECOND_NS,)).fetchall()
        return [hash_ for (hash_,) in rows]

    def delete_expired(self) -> int:
        """Forget messages that were handled more than a day ago; return how many."""
        with self._lock, self._translated():
            db = self._opened()
            horizon_ms = self._clock.wall_ns() // MILLISECOND_NS - INDEX_DONE_KEEP_S * 1_000
            db.execute(SQL.delete_expired, (horizon_ms,))
            return db.changes()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _opened(self) -> apsw.Connection:
        if self._db is None:
            try:
                self._db = self._open()
            except (apsw.CorruptError, apsw.NotADBError, PosthouseError) as damage:
                log.warning("index_made_anew", path=str(self._path), reason=str(damage))
                for suffix in ("-wal", "-shm", ""):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
                self._db = self._open()
        return self._db

    def _open(self) -> apsw.Connection:
        db = open_writer(self._path, Durability.NORMAL)
        try:
            db.pragma("wal_autocheckpoint", _CHECKPOINT_PAGES)
            migrate(db, self._path, (COMPONENT,))
        except BaseException:
            db.close()
            raise
        return db

    def _catch_up(self, db: apsw.Connection) -> None:
        place = db.execute(SQL.place).fetchone()
        extent = self._store.extent()
        if place is None and extent.pruned_through == 0:  # the journal tells everything from the beginning
            db.execute(SQL.set_place, (extent.epoch, 0))
        elif place is None or place[0] != extent.epoch or not extent.pruned_through <= place[1] <= extent.head:
            self._rebuild(db)
        while self._take_page(db):
            pass
        self._mark_in_work(db)

    def _take_page(self, db: apsw.Connection) -> bool:
        with _transaction(db):
            epoch, seq = db.execute(SQL.place).fetchone() or ("", 0)
            records = self._store.pool.run_blocking(lambda bus_db: read_after(bus_db, seq, _PAGE))
            if not records:
                return False
            is_pruned = records[0].seq > seq + 1
            if not is_pruned:
                apply_records(db, records)
                db.execute(SQL.set_place, (epoch, records[-1].seq))
        if is_pruned:  # while it was being read
            self._rebuild(db)
        return is_pruned or len(records) == _PAGE

    def _rebuild(self, db: apsw.Connection) -> int:
        snapshot = self._store.pool.run_blocking(read_snapshot)
        with _transaction(db):
            db.execute(SQL.remove_live)
            count = 0

            def counted() -> Iterator[Any]:
                nonlocal count
                for row in file_rows(self._root, snapshot):
                    count += 1
                    yield row

            db.executemany(SQL.put, counted())
            db.execute(SQL.set_place, (snapshot[0].epoch, snapshot[0].head))
        return count

    def _mark_in_work(self, db: apsw.Connection) -> None:
        hashes: Any = db.execute(SQL.busy_endpoints).fetchall()
        for (hash_,) in hashes:
            marked = {id_ for (id_,) in db.execute(SQL.ids_in_work, (hash_,))}
            try:
                found = {path.name for path in (self._root / "mailboxes" / hash_ / "cur").iterdir()}
            except FileNotFoundError:
                found = set()
            db.executemany(SQL.set_status, [("cur", id_, hash_, "new") for id_ in found - marked])
            db.executemany(SQL.set_status, [("new", id_, hash_, "cur") for id_ in marked - found])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as failure:
            raise translate(failure, str(self._path)) from failure


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
