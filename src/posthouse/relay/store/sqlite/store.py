"""The relay's store on SQLite: relay.db through the group-commit writer, with FULL durability.

Implements RelayStore and Unit of posthouse.relay.store.protocol. Reads run in the pool, one snapshot each, and
return plain values; only the writer's thread ever sees a Unit. Events are written a group at a time in a handful of
statements, with all derived rows; reindexing rebuilds exactly those rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.cursor import Extent
from posthouse.journal.read import read_after, read_extent
from posthouse.journal.records import Record
from posthouse.journal.store import Store, exit_process
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.model.event import Coordinate, decode_event
from posthouse.model.filters import Filter
from posthouse.model.lease import RequestRecord
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import (
    EventRow,
    Page,
    Pruned,
    Query,
    Released,
    Scope,
    StoredEvent,
    event_address,
    event_terms,
)
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite import meshes_and_locks as locks
from posthouse.relay.store.sqlite.deliveries import DELIVERIES, SqliteDeliveries
from posthouse.relay.store.sqlite.delivery_reads import SqliteDeliveryReads
from posthouse.relay.store.sqlite.meshes_and_locks import LOCKS, MESHES_SQL, invite_of, read_locks, read_mesh_rows
from posthouse.relay.store.sqlite.pinch import PINCH, SqlitePinch, SqlitePinchReads
from posthouse.relay.store.sqlite.queries import (
    EVENTS_SQL,
    Range,
    count_matches,
    find_current,
    find_event,
    plan_filter,
    plan_history,
    read_feed,
    read_page,
)
from posthouse.relay.store.sqlite.retention import prune, read_contents, release_kept, snapshot_journal, sweep_expired
from posthouse.relay.wire.lock_operations import LockEntry, LockRun
from posthouse.relay.wire.mesh_rows import AccessRow, InviteRow, MemberRow, MeshRow, MeshRows
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import BulkInsert
from posthouse.sqlite.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS

INSERT_EVENTS = BulkInsert(EVENTS_SQL.insert_events, 10)
INSERT_TERMS = BulkInsert(EVENTS_SQL.insert_terms, 2)
INSERT_CURRENT = BulkInsert(EVENTS_SQL.insert_current, 4, EVENTS_SQL.keep_larger)
_EVENT_BY_ID = EVENTS_SQL.event_by_id
_KEY_AT = len(NODE_SCHEME) + 1


def insert_events(tx: JournalTransaction, rows: Sequence[EventRow]) -> list[int]:
    """Write events that are not known yet, each with its one record, and return their seqs in order."""
    first = tx.append_many(
        [(row.record_type, row.mesh, row.event.pubkey, row.event.id, row.record_body) for row in rows]
    )
    seqs = list(range(first, first + len(rows)))
    events, terms, current = [], [], []
    for seq, row in zip(seqs, rows, strict=True):
        event = row.event
        key = bytes.fromhex(event.id)
        recipient = None if row.recipient is None else bytes.fromhex(row.recipient[_KEY_AT:])
        author = bytes.fromhex(event.pubkey[_KEY_AT:])
        created_at_ns, address = event.created_at_ns, row.address
        events.append(
            (seq, key, author, event.kind, created_at_ns, row.mesh, recipient, row.expiration_s, address, row.raw)
        )
        terms += [(term, seq) for term in row.terms]
        if address is not None:
            current.append((address, created_at_ns, key, seq))
    INSERT_EVENTS.run(tx.db, events)
    INSERT_TERMS.run(tx.db, sorted(terms))  # in the order of the tree: neighbours share their pages
    if current:
        INSERT_CURRENT.run(tx.db, current)
    return seqs


def known_ids(db: apsw.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the seq of each of these ids that was accepted before."""
    if len(ids) == 1:
        seq = db.execute(_EVENT_BY_ID, (bytes.fromhex(ids[0]),)).get
        return {} if seq is None else {ids[0]: seq}
    keys = tuple(bytes.fromhex(id_) for id_ in ids)
    return {key.hex(): seq for key, seq in db.execute(EVENTS_SQL.known_ids, (apsw.carray(keys),))} if keys else {}


_ROWS_PER_READ = 1_000


def reindex(db: apsw.Connection) -> None:
    """Rebuild the tag index with its address aliases, and the index of current events."""
    db.execute(EVENTS_SQL.clear_terms)
    db.execute(EVENTS_SQL.clear_current)
    seq = 0
    while rows := _rows_after(db, seq):
        _index(db, rows)
        seq = rows[-1][0]


def _rows_after(db: apsw.Connection, seq: int) -> list[Any]:
    return db.execute(EVENTS_SQL.events_after, (seq, _ROWS_PER_READ)).fetchall()


def _index(db: apsw.Connection, rows: list[tuple[int, bytes, str]]) -> None:
    terms, current = [], []
    for seq, raw, mesh in rows:
        event = decode_event(raw)
        address = event_address(event)
        terms += [(term, seq) for term in event_terms(event, mesh, address)]
        if address is not None:
            current.append((address, event.created_at_ns, bytes.fromhex(event.id), seq))
    INSERT_TERMS.run(db, sorted(terms))
    INSERT_CURRENT.run(db, current)


class SqliteUnit:
    """Implements posthouse.relay.store.interface.Unit over one transaction."""

    def __init__(self, tx: JournalTransaction, clock: Clock) -> None:
        self._tx = tx
        self._db = tx.db
        self._clock = clock

    @property
    def now_ns(self) -> int:
        return self._tx.now_ns

    @property
    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    @property
    def deliveries(self) -> SqliteDeliveries:
        return SqliteDeliveries(self._tx)

    @property
    def pinch(self) -> SqlitePinch:
        return SqlitePinch(self._db)

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

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        return known_ids(self._db, ids)

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        return insert_events(self._tx, rows)

    def save_mesh(self, row: MeshRow) -> None:
        self._db.execute(MESHES_SQL.save_mesh, (row.mesh, row.is_open, row.creator, row.created_at_ns))

    def save_member(self, row: MemberRow) -> None:
        self._db.execute(MESHES_SQL.save_member, (row.mesh, row.node, row.name, row.role.value))

    def remove_member(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES_SQL.remove_member, (mesh, node))

    def save_access(self, row: AccessRow) -> None:
        verdicts = (row.read.value, row.write.value, row.lock.value)
        self._db.execute(MESHES_SQL.save_access, (row.mesh, row.node, *verdicts))

    def remove_access(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES_SQL.remove_access, (mesh, node))

    def save_topic(self, mesh: str, topic: str, creator: str) -> None:
        self._db.execute(MESHES_SQL.save_topic, (mesh, topic, creator))

    def remove_topic(self, mesh: str, topic: str) -> None:
        self._db.execute(MESHES_SQL.remove_topic, (mesh, topic))

    def save_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES_SQL.save_subscription, (mesh, node, pattern))

    def remove_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES_SQL.remove_subscription, (mesh, node, pattern))

    def save_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES_SQL.save_block, (mesh, node, blocked))

    def remove_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES_SQL.remove_block, (mesh, node, blocked))

    def save_invite(self, row: InviteRow) -> None:
        ends = (row.uses_left, row.expires_at_ns, row.creator)
        self._db.execute(MESHES_SQL.save_invite, (row.invite_id, row.code_hash, row.mesh, row.role.value, *ends))

    def find_invite(self, code_hash: bytes) -> InviteRow | None:
        return invite_of(self._db.execute(MESHES_SQL.find_invite, (code_hash,)).fetchone())

    def use_invite(self, invite_id: str, node: str) -> None:
        self._db.execute(MESHES_SQL.take_use, (invite_id,))
        self._db.execute(MESHES_SQL.note_use, (invite_id, node))

    def has_used_invite(self, invite_id: str, node: str) -> bool:
        return bool(self._db.execute(MESHES_SQL.has_used, (invite_id, node)).get)

    def find_lock(self, mesh: str, resource: str) -> LockEntry | None:
        return locks.find_lock(self._db, mesh, resource)

    def save_lock(self, entry: LockEntry) -> None:
        locks.save_lock(self._db, entry)

    def find_lock_request(self, mesh: str, resource: str, owner: str, request_id: str) -> RequestRecord | None:
        return locks.find_request(self._db, mesh, resource, owner, request_id)

    def save_lock_request(self, mesh: str, resource: str, owner: str, record: RequestRecord) -> None:
        locks.save_request(self._db, mesh, resource, owner, record, self._tx.now_ns)

    def find_lock_run(self) -> LockRun | None:
        return locks.find_run(self._db)

    def begin_lock_run(self, run: LockRun, token_leap: int) -> int:
        return locks.begin_run(self._db, run, token_leap)

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        return locks.find_fence_write(self._db, mesh, resource, address)

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None:
        locks.save_fence_write(self._db, mesh, resource, address, token)

    def sweep_expired(self, limit: int) -> int:
        return sweep_expired(self._tx, limit)

    def snapshot_journal(self, through_seq: int) -> int:
        return snapshot_journal(self._tx, through_seq)

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        return prune(self._tx, through_seq, snapshot_seq, horizon_ns)

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        return release_kept(self._tx, after_seq, horizon_ns, limit)

    def reindex(self) -> None:
        reindex(self._db)


R = TypeVar("R")
RELAY = Component("relay", "posthouse.relay.store.sqlite.schema.events")
COMPONENTS = (RELAY, LOCKS, DELIVERIES, PINCH)
FILE_NAME = "relay.db"
_WAL_PAGES = 8_000  # 32 MiB: pages of an index that is touched at random come again before they are copied
_WARMED_EVENTS = 2_000_000  # whose ids fit the cache; read in well under a second
_CACHE_KIB = 131_072  # most of the id index of a million events fits: every insert looks at a random leaf of it


class SqliteStore:
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
        self._store.writer.run_blocking(_warm_cache)
        self.path = path
        self.deliveries = SqliteDeliveryReads(self._store.pool)
        self.pinch = SqlitePinchReads(self._store.pool)

    @property
    def epoch(self) -> str:
        return self._store.epoch

    @property
    def state(self) -> str:
        return self._store.writer.state

    def submit(self, work: Callable[[Unit], R], *, size: int = 0) -> asyncio.Future[R]:
        return self._store.writer.submit(lambda tx: work(SqliteUnit(tx, self._clock)), size=size)

    def submit_with_callback(
        self, work: Callable[[Unit], Any], on_done: Callable[[Any, BaseException | None], None], *, size: int = 0
    ) -> None:
        self._store.writer.submit_with_callback(lambda tx: work(SqliteUnit(tx, self._clock)), on_done, size=size)

    async def extent(self) -> Extent:
        return await self._store.pool.run(read_extent)

    async def known(self, ids: Sequence[str]) -> dict[str, int]:
        return await self._store.pool.run(lambda db: known_ids(db, ids))

    async def query(self, query: Query) -> Page:
        return await self._store.pool.run(lambda db: self._read(db, query, None))

    async def history(self, coordinate: Coordinate, query: Query) -> Page:
        return await self._store.pool.run(lambda db: self._read(db, query, coordinate))

    async def count(self, filters: Sequence[Filter], scope: Scope) -> int:
        total, left = 0, Range(0, (await self.extent()).head, False)
        while not left.is_empty:
            part, left = await self._store.pool.run(self._counting(filters, scope, left))
            total += part
        return total

    async def event(self, event_id: str, scope: Scope) -> StoredEvent | None:
        now_ns = self._clock.wall_ns()
        return await self._store.pool.run(lambda db: find_event(db, event_id, scope, now_ns))

    async def current(self, coordinate: Coordinate, scope: Scope) -> StoredEvent | None:
        now_ns = self._clock.wall_ns()
        return await self._store.pool.run(lambda db: find_current(db, coordinate, scope, now_ns))

    async def journal(self, after_seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
        return await self._store.pool.run(lambda db: read_after(db, after_seq, limit, types))

    async def contents(self, after_seq: int, through_seq: int) -> list[bytes]:
        return await self._store.pool.run(lambda db: read_contents(db, after_seq, through_seq))

    async def feed(self, name: str, after_seq: int, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        return await self._store.pool.run(lambda db: read_feed(db, name, after_seq, limit))

    async def mesh_rows(self) -> MeshRows:
        return await self._store.pool.run(read_mesh_rows)

    async def locks(self, meshes: frozenset[str] | None, after: tuple[str, str], limit: int) -> list[LockEntry]:
        return await self._store.pool.run(lambda db: read_locks(db, meshes, after, limit))

    def statistics(self) -> dict[str, Any]:
        return self._store.statistics()

    def close(self) -> None:
        self._store.close()

    def _read(self, db: apsw.Connection, query: Query, coordinate: Coordinate | None) -> Page:
        span = _range(query, read_extent(db).head)
        now_ns = self._clock.wall_ns()
        if coordinate is None:
            bounds = (span.low, span.high)
            plans = [plan_filter(db, wanted, query.scope, now_ns, bounds) for wanted in query.filters]
        else:
            plans = [plan_history(coordinate, query.scope, now_ns)]
        return read_page(db, plans, span, query.limit, self._clock)

    def _counting(
        self, filters: Sequence[Filter], scope: Scope, left: Range
    ) -> Callable[[apsw.Connection], tuple[int, Range]]:
        def read(db: apsw.Connection) -> tuple[int, Range]:
            now_ns = self._clock.wall_ns()
            plans = [plan_filter(db, wanted, scope, now_ns, (left.low, left.high)) for wanted in filters]
            return count_matches(db, plans, left, self._clock)

        return read


def _range(query: Query, head: int) -> Range:
    if query.is_descending:
        return Range(0, head if query.from_seq is None else min(head, query.from_seq - 1), True)
    return Range(query.from_seq or 0, head, False)


def _warm_cache(tx: JournalTransaction) -> None:
    """Make room for the index that every insert looks into at random, and read it while nobody waits yet."""
    tx.db.pragma("cache_size", -_CACHE_KIB)
    if tx.head <= _WARMED_EVENTS:
        tx.db.execute(EVENTS_SQL.walk_ids).fetchall()
