"""The relay's store on SQLite: relay.db through the group-commit writer, with FULL durability.

Implements RelayStore and Unit of posthouse.relay.store.protocol, with their parts from the modules beside it. Reads
run in the pool, one snapshot each; only the writer's thread ever sees a Unit. Events are written a group at a time in
a handful of statements, with all derived rows; reindexing rebuilds exactly those rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.cursor import Extent
from posthouse.journal.read import read_extent
from posthouse.journal.store import JOURNAL, Store, exit_process
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import CurrentEvent, EventRow
from posthouse.relay.store.high_water import MovedTo
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.deliveries import DELIVERIES, SqliteDeliveries
from posthouse.relay.store.sqlite.delivery_reads import SqliteDeliveryReads
from posthouse.relay.store.sqlite.event_index import INSERT_CURRENT, EventIndex
from posthouse.relay.store.sqlite.event_reads import EventReads
from posthouse.relay.store.sqlite.lock_requests import LOCKS, RECORDS_BEHIND, LockRequests
from posthouse.relay.store.sqlite.meshes_and_locks import LockTables, MeshTables
from posthouse.relay.store.sqlite.pinch import PINCH, SqlitePinch, SqlitePinchReads
from posthouse.relay.store.sqlite.queries import EVENTS_SQL, known_ids
from posthouse.relay.store.sqlite.recording import FOLLOW, MAX_BYTES, RECORDING_TABLES, SqliteChangeLog
from posthouse.relay.store.sqlite.retention import RetentionTables
from posthouse.relay.store.sqlite.webhooks import WEBHOOKS, SqliteWebhookReads, SqliteWebhooks
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close, translate
from posthouse.sqlite.schema import check_known_schema
from posthouse.sqlite.transaction import BulkInsert
from posthouse.storage.handover import LoopResults
from posthouse.storage.sql_files import Component
from posthouse.storage.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS

R = TypeVar("R")
RELAY = Component("relay", "posthouse.relay.store.sqlite.schema.events")
COMPONENTS = (RELAY, LOCKS, DELIVERIES, PINCH, FOLLOW, WEBHOOKS)
FILE_NAME = "relay.db"
COPY_NAME = "follower.db"  # of a copy that follows another relay: it does not serve
#: tables that `reindex` writes from the events, and those that a rewritten store begins without
DERIVED = ("event_ids", "event_terms", "current_events", "fenced_events", *RECORDING_TABLES)
INSERT_EVENTS = BulkInsert(EVENTS_SQL.insert_events, 10)
_KEY_AT = len(NODE_SCHEME) + 1
_WAL_PAGES = 8_000  # 32 MiB: pages of a randomly written index change again before they are copied
_WARMED_EVENTS = 2_000_000  # their ids fit into the cache and are read in well under a second
_CACHE_KIB = 131_072  # holds most of the index of ids of a million events: every lookup reads a random leaf of it


class SqliteUnit(MeshTables, LockTables, RetentionTables):
    """Implements posthouse.relay.store.protocol.Unit; one object serves all transactions of the writer, in turn."""

    meshes_changed_at = 0  # no other relay writes to a file

    def __init__(self, tx: JournalTransaction, clock: Clock) -> None:
        self._tx = self._journal = tx
        self._db = tx.db
        self._clock = clock
        #: set by `run`
        self.now_ns = 0
        self._index = EventIndex(tx)
        self.deliveries = SqliteDeliveries(tx, self._index)
        self._requests = LockRequests(tx)
        self.has_tombstones = bool(self._db.execute(EVENTS_SQL.has_tombstones).get)

    @cached_property
    def pinch(self) -> SqlitePinch:
        return SqlitePinch(self._tx, self.deliveries)

    @cached_property
    def webhooks(self) -> SqliteWebhooks:
        return SqliteWebhooks(self._db)

    @property
    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def run(self, work: Callable[[Unit], R]) -> R:
        """Run one unit of work in the transaction that is open."""
        self.now_ns = self._tx.now_ns
        if self._requests.saved_through < (due_seq := self._tx.head - RECORDS_BEHIND):
            self._requests.write_through(due_seq)
        return work(self)

    def append(
        self,
        type: str,  # noqa: A002 - the journal's word
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        return self._tx.append(type, mesh=mesh, actor=actor, ref=ref, body=body)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self._tx.undo.append(undo)

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        return self._index.seqs_of(ids)

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        first = self._tx.append_many(
            [(row.record_type, row.mesh, row.event.pubkey, row.event.id, row.record_body) for row in rows]
        )
        seqs = list(range(first, first + len(rows)))
        events, current, fenced = [], [], []
        for seq, row in zip(seqs, rows, strict=True):
            event = row.event
            key = bytes.fromhex(event.id)
            recipient = None if row.recipient is None else bytes.fromhex(row.recipient[_KEY_AT:])
            author = bytes.fromhex(event.pubkey[_KEY_AT:])
            created_at_ns, address = event.created_at_ns, row.address
            events.append(
                (seq, key, author, event.kind, created_at_ns, row.mesh, recipient, row.expiration_s, address, row.raw)
            )
            if address is not None:
                current.append((address, created_at_ns, key, seq))
            if row.fence is not None:
                fenced.append((seq, row.mesh, row.fence.resource, row.fence.token))
        INSERT_EVENTS.run(self._db, events)
        if current:
            INSERT_CURRENT.run(self._db, current)
        if fenced:
            self._db.executemany(EVENTS_SQL.insert_fenced, fenced)
        self._index.add(seqs, rows)
        return seqs

    def find_current(self, addresses: Collection[bytes]) -> dict[bytes, CurrentEvent]:
        rows = self._db.execute(EVENTS_SQL.current_of_all, (apsw.carray(tuple(addresses)),)) if addresses else ()
        return {address: CurrentEvent(seq, at_ns, key.hex()) for address, seq, at_ns, key in rows}

    def reindex(self) -> None:
        self._index.rebuild()


class SqliteStore(EventReads):
    """A relay's store in one SQLite file."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        on_fatal: Callable[[Fatal], None] = exit_process,
        vfs: str | None = None,
        readers: int = 4,
        writer_max_items: int = MAX_WAITING_ITEMS,
        writer_max_bytes: int = MAX_WAITING_BYTES,
        follow_max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._store = Store(
            path,
            COMPONENTS,
            clock,
            on_fatal=on_fatal,
            vfs=vfs,
            readers=readers,
            restart_at_pages=_WAL_PAGES,
            max_items=writer_max_items,
            max_bytes=writer_max_bytes,
            may_shrink=True,
        )
        self._unit = self._store.writer.run_blocking(lambda tx: _warm_unit(tx, clock))
        self.changes = SqliteChangeLog(self._store, follow_max_bytes)
        self.path = path
        self._pool = self._store.pool
        self.deliveries = SqliteDeliveryReads(self._pool)
        self.pinch = SqlitePinchReads(self._pool)
        self.shared = None
        self.webhooks = SqliteWebhookReads(self._pool)

    @property
    def epoch(self) -> str:
        return self._store.epoch

    @property
    def state(self) -> str:
        return self._store.writer.state

    def submit(self, work: Callable[[Unit], R], *, size: int = 0) -> asyncio.Future[R]:
        return self._store.writer.submit(lambda _tx: self._unit.run(work), size=size)

    def submit_with_callback(
        self,
        work: Callable[[Unit], Any],
        on_done: Callable[[Any, BaseException | None], None],
        *,
        size: int = 0,
        is_short: bool = False,
    ) -> None:
        self._store.writer.submit_with_callback(lambda _tx: self._unit.run(work), on_done, size=size, is_short=is_short)

    def loop_results(self) -> LoopResults:
        return self._store.writer.loop_results()

    async def known(self, ids: Sequence[str]) -> dict[str, int]:
        return await self._pool.run(lambda db: known_ids(db, ids))

    def statistics(self) -> dict[str, Any]:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()


def stored_extent(path: Path) -> Extent | None:
    """Return the extent of a store that is not open, of this version or an older one; None if there is no store."""
    if not path.exists() or not path.stat().st_size:
        return None
    check_known_schema(path, (JOURNAL, *COMPONENTS))
    db = open_reader(path)
    skip_checkpoint_on_close(db)
    try:
        return read_extent(db) if has_store(db) else None
    except apsw.Error as exc:
        raise translate(exc, str(path)) from exc
    finally:
        db.close()


def has_store(db: apsw.Connection) -> bool:
    """Return False for a file without tables: the start that created it has died."""
    return db.execute(EVENTS_SQL.has_table, ("epochs",)).get is not None


def find_moved(path: Path) -> MovedTo | None:
    """Return where a store that is not open was moved to; None if it was not moved."""
    if not path.exists() or not path.stat().st_size:
        return None
    db = open_reader(path)
    skip_checkpoint_on_close(db)
    try:
        return read_moved(db)
    except apsw.Error as exc:
        raise translate(exc, str(path)) from exc
    finally:
        db.close()


def read_moved(db: apsw.Connection) -> MovedTo | None:
    """Return the place that a store was moved to; None if it was not, or has a schema that is older than moving."""
    if db.execute(EVENTS_SQL.has_table, ("moved_to",)).get is None:
        return None
    found: Any = db.execute(EVENTS_SQL.moved_to).fetchone()
    return None if found is None else MovedTo(*found)


def _warm_unit(tx: JournalTransaction, clock: Clock) -> SqliteUnit:
    """Return the unit of the writer; its cache holds the index of ids, which is read and written at random places."""
    tx.db.pragma("cache_size", -_CACHE_KIB)
    if tx.head <= _WARMED_EVENTS:
        tx.db.execute(EVENTS_SQL.walk_ids).fetchall()  # before clients wait
    return SqliteUnit(tx, clock)
