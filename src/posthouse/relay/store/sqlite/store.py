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
from posthouse.model.event import decode_event, read_fence_tag
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import CurrentEvent, EventRow, event_address, event_terms
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.deliveries import DELIVERIES, SqliteDeliveries
from posthouse.relay.store.sqlite.delivery_reads import SqliteDeliveryReads
from posthouse.relay.store.sqlite.event_reads import EventReads
from posthouse.relay.store.sqlite.meshes_and_locks import LOCKS, LockTables, MeshTables
from posthouse.relay.store.sqlite.pinch import PINCH, SqlitePinch, SqlitePinchReads
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.relay.store.sqlite.retention import RetentionTables
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close, translate
from posthouse.sqlite.schema import Component, check_known_schema
from posthouse.sqlite.statements import BulkInsert
from posthouse.sqlite.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS

R = TypeVar("R")
RELAY = Component("relay", "posthouse.relay.store.sqlite.schema.events")
COMPONENTS = (RELAY, LOCKS, DELIVERIES, PINCH)
FILE_NAME = "relay.db"
#: tables that `reindex` writes from the events
DERIVED = ("event_terms", "current_events", "fenced_events")
INSERT_EVENTS = BulkInsert(EVENTS_SQL.insert_events, 10)
INSERT_TERMS = BulkInsert(EVENTS_SQL.insert_terms, 2)
INSERT_CURRENT = BulkInsert(EVENTS_SQL.insert_current, 4, EVENTS_SQL.keep_larger)
_KEY_AT = len(NODE_SCHEME) + 1
_WAL_PAGES = 8_000  # 32 MiB: pages of a randomly written index change again before they are copied
_WARMED_EVENTS = 2_000_000  # their ids fit into the cache and are read in well under a second
_CACHE_KIB = 131_072  # holds most of the id index of a million events: every insert reads a random leaf of it
_ROWS_PER_READ = 1_000


class SqliteUnit(MeshTables, LockTables, RetentionTables):
    """Implements posthouse.relay.store.protocol.Unit; one object serves all transactions of the writer, in turn."""

    def __init__(self, tx: JournalTransaction, clock: Clock) -> None:
        self._tx = tx
        self._db = tx.db
        self._clock = clock
        #: set by `run`
        self.now_ns = 0
        self.deliveries = SqliteDeliveries(tx)

    @cached_property
    def pinch(self) -> SqlitePinch:
        return SqlitePinch(self._tx)

    @property
    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def run(self, work: Callable[[Unit], R]) -> R:
        """Run one unit of work in the transaction that is open."""
        self.now_ns = self._tx.now_ns
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
        self._tx.on_rollback(undo)

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        return known_ids(self._db, ids)

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        first = self._tx.append_many(
            [(row.record_type, row.mesh, row.event.pubkey, row.event.id, row.record_body) for row in rows]
        )
        seqs = list(range(first, first + len(rows)))
        events, terms, current, fenced = [], [], [], []
        for seq, row in zip(seqs, rows, strict=True):
            event = row.event
            key = bytes.fromhex(event.id)
            recipient = None if row.recipient is None else bytes.fromhex(row.recipient[_KEY_AT:])
            author = bytes.fromhex(event.pubkey[_KEY_AT:])
            created_at_ns, address = event.created_at_ns, row.address
            events.append(
                (seq, key, author, event.kind, created_at_ns, row.mesh, recipient, row.expiration_s, address, row.raw)
            )
            terms += [(term, seq) for term in row.index_terms]
            if address is not None:
                current.append((address, created_at_ns, key, seq))
            if row.fence is not None:
                fenced.append((seq, row.mesh, row.fence.resource, row.fence.token))
        INSERT_EVENTS.run(self._db, events)
        INSERT_TERMS.run(self._db, sorted(terms))  # in the order of the index: neighbours share their pages
        if current:
            INSERT_CURRENT.run(self._db, current)
        if fenced:
            self._db.executemany(EVENTS_SQL.insert_fenced, fenced)
        return seqs

    def find_current(self, addresses: Collection[bytes]) -> dict[bytes, CurrentEvent]:
        rows = self._db.execute(EVENTS_SQL.current_of_all, (apsw.carray(tuple(addresses)),)) if addresses else ()
        return {address: CurrentEvent(seq, at_ns, key.hex()) for address, seq, at_ns, key in rows}

    def reindex(self) -> None:
        reindex(self._db)


def known_ids(db: apsw.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the seq of each of these ids that was accepted before."""
    if len(ids) == 1:
        seq = db.execute(EVENTS_SQL.event_by_id, (bytes.fromhex(ids[0]),)).get
        return {} if seq is None else {ids[0]: seq}
    keys = tuple([bytes.fromhex(id_) for id_ in ids])
    return {key.hex(): seq for key, seq in db.execute(EVENTS_SQL.known_ids, (apsw.carray(keys),))} if keys else {}


def reindex(db: apsw.Connection) -> None:
    """Rebuild the indexes of terms, of current events and of fenced events."""
    db.execute(EVENTS_SQL.clear_fenced)
    db.execute(EVENTS_SQL.clear_terms)
    db.execute(EVENTS_SQL.clear_current)
    seq = 0
    while rows := _rows_after(db, seq):
        _index(db, rows)
        seq = rows[-1][0]


def _rows_after(db: apsw.Connection, seq: int) -> list[Any]:
    return db.execute(EVENTS_SQL.events_after, (seq, _ROWS_PER_READ)).fetchall()


def _index(db: apsw.Connection, rows: list[tuple[int, bytes, str]]) -> None:
    terms, current, fenced = [], [], []
    for seq, raw, mesh in rows:
        event = decode_event(raw)
        address = event_address(event)
        terms += [(term, seq) for term in event_terms(event, mesh, address)]
        if address is not None:
            current.append((address, event.created_at_ns, bytes.fromhex(event.id), seq))
            if (fence := read_fence_tag(event)) is not None:
                fenced.append((seq, mesh, fence.resource, fence.token))
    INSERT_TERMS.run(db, sorted(terms))
    INSERT_CURRENT.run(db, current)
    db.executemany(EVENTS_SQL.insert_fenced, fenced)


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
        )
        self._unit = self._store.writer.run_blocking(lambda tx: _warm_unit(tx, clock))
        self.path = path
        self._pool = self._store.pool
        self.deliveries = SqliteDeliveryReads(self._pool)
        self.pinch = SqlitePinchReads(self._pool)

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
        has_journal = db.execute(EVENTS_SQL.has_journal).get  # not if the start that created the file has died
        return read_extent(db) if has_journal else None
    except apsw.Error as exc:
        raise translate(exc, str(path)) from exc
    finally:
        db.close()


def _warm_unit(tx: JournalTransaction, clock: Clock) -> SqliteUnit:
    """Return the unit of the writer; its cache holds the id index, which every insert reads at random places."""
    tx.db.pragma("cache_size", -_CACHE_KIB)
    if tx.head <= _WARMED_EVENTS:
        tx.db.execute(EVENTS_SQL.walk_ids).fetchall()  # before clients wait
    return SqliteUnit(tx, clock)
