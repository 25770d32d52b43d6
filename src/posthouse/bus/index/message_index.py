"""The message index: a separate database that follows the journal, refreshed in the background.

Its journal position is stored in the same transaction as the rows, so a process killed at any point leaves the index
behind, never wrong. It may lag briefly; queries catch up first. The journal does not say which waiting messages are
being handled (cur), so this is read from the mailboxes. The methods of MessageIndex block and run on the index thread,
one at a time per process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from posthouse.bus.core import Core
from posthouse.bus.index.index_rows import SQL, apply_records, file_rows, read_snapshot
from posthouse.bus.results import IndexRow, Metrics
from posthouse.journal.read import read_after
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import INDEX_DONE_KEEP_S, MILLISECOND_NS
from posthouse.sqlite.connection import Durability, open_writer, translate
from posthouse.sqlite.schema import migrate
from posthouse.storage.sql_files import Component

R = TypeVar("R")
log = get_log(__name__)
BUS_INDEX = Component("bus_index", "posthouse.bus.index")
_PAGE_RECORDS = 2_000
REFRESH_DELAY_S = 0.25  # one refresh then covers many messages
_CHECKPOINT_PAGES = 1_000  # SQLite may checkpoint on this connection: it runs on a thread that no publish waits for


class MessageIndex:
    """The index of one data directory."""

    def __init__(self, path: Path, root: Path, store: DirectStore, clock: Clock) -> None:
        self._path = path
        self._root = root
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._db: apsw.Connection | None = None

    def refresh(self) -> None:
        """Apply the journal records since the last refresh."""
        with self._lock, self._translated():
            self._catch_up(self._opened())

    def rebuild(self) -> int:
        """Rebuild the index from the files; return the number of messages found."""
        with self._lock, self._translated():
            return self._rebuild(self._opened())

    def metrics(self) -> Metrics:
        """Return the current number of messages by status and by subject."""
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

    def dead_subjects(self, endpoint_hash: str) -> dict[str, int]:
        """Return how many dead letters a mailbox holds, by the subject they were for."""
        with self._lock, self._translated():
            db = self._opened()
            self._catch_up(db)
            rows: Any = db.execute(SQL.dead_subjects, (endpoint_hash,)).fetchall()
        return dict(rows)

    def mailboxes_with_expired(self) -> list[str]:
        """Return the mailboxes that hold expired messages."""
        with self._lock, self._translated():
            db = self._opened()
            self._catch_up(db)
            rows: Any = db.execute(SQL.expired, (self._clock.wall_ns() // MILLISECOND_NS,)).fetchall()
        return [hash_ for (hash_,) in rows]

    def delete_expired(self) -> int:
        """Delete the rows of messages that were handled more than a day ago; return how many."""
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
            migrate(db, self._path, (BUS_INDEX,))
        except BaseException:
            db.close()
            raise
        return db

    def _catch_up(self, db: apsw.Connection) -> None:
        position = db.execute(SQL.position).fetchone()
        extent = self._store.extent()
        if position is None and extent.pruned_through == 0:  # the journal has everything from the beginning
            db.execute(SQL.set_position, (extent.epoch, 0))
        elif position is None or position[0] != extent.epoch or not extent.pruned_through <= position[1] <= extent.head:
            self._rebuild(db)
        while self._apply_page(db):
            pass
        self._mark_being_handled(db)

    def _apply_page(self, db: apsw.Connection) -> bool:
        with _transaction(db):
            epoch, seq = db.execute(SQL.position).fetchone() or ("", 0)
            records = self._store.pool.run_blocking(lambda bus_db: read_after(bus_db, seq, _PAGE_RECORDS))
            if not records:
                return False
            is_pruned = records[0].seq > seq + 1
            if not is_pruned:
                apply_records(db, records)
                db.execute(SQL.set_position, (epoch, records[-1].seq))
        if is_pruned:  # pruned while it was being read
            self._rebuild(db)
        return is_pruned or len(records) == _PAGE_RECORDS

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
            db.execute(SQL.set_position, (snapshot.extent.epoch, snapshot.extent.head))
        return count

    def _mark_being_handled(self, db: apsw.Connection) -> None:
        hashes: Any = db.execute(SQL.busy_endpoints).fetchall()
        for (hash_,) in hashes:
            marked = {id_ for (id_,) in db.execute(SQL.ids_being_handled, (hash_,))}
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


class IndexUpdater:
    """Refreshes the index of one open Bus in the background."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.index = MessageIndex(core.directory.index, core.directory.root, core.store, core.clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bus index")
        self._committed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._core.ledger.on_commit.append(self._committed.set)
        self._task = self._core.loop.create_task(self._refresh(), context=self._core.context.copy())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.run(self.index.close)
        self._thread.shutdown()

    async def run(self, work: Callable[[], R]) -> R:
        """Run a method of the index on the index thread."""
        return await self._core.loop.run_in_executor(self._thread, work)

    async def _refresh(self) -> None:
        while True:
            await self._committed.wait()
            await asyncio.sleep(REFRESH_DELAY_S)
            self._committed.clear()
            try:
                await self.run(self.index.refresh)
            except PosthouseError as failure:  # busy or full: the next commit tries again
                log.info("index_lags", reason=str(failure))
