"""Reading events, the journal and feeds on PostgreSQL, outside the writer; each call sees one committed state.

EventReads implements its part of posthouse.relay.store.protocol.RelayStore. Feeds have the columns of the views that
SQLite has. JSON is decoded here and not by the server, which refuses to read a NUL from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import Coordinate
from posthouse.model.filters import Filter
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.relay.store.event_rows import (
    ContentRow,
    Page,
    Query,
    Scope,
    StoredEvent,
    StoreSpace,
    Usage,
    address_term,
)
from posthouse.relay.store.postgresql.pg_journal import read_after, read_extent, read_newest
from posthouse.relay.store.postgresql.pg_locks import last_token, read_locks
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.store.postgresql.pg_queries import (
    EVENTS_SQL,
    content_rows,
    contents_of_ids,
    filter_parameters,
    plan_filter,
    plan_history,
    scope_parameters,
)
from posthouse.relay.store.query_pages import Range, count_matches, range_of, read_page
from posthouse.relay.wire.lock_operations import LockEntry, LockPosition
from posthouse.relay.wire.mesh_rows import MeshRows

_ONE = f"{EVENTS_SQL.one_by_id}\n{EVENTS_SQL.visible}"
_CURRENT = f"{EVENTS_SQL.current_of}\n{EVENTS_SQL.visible}"
_LARGEST = (
    f"{EVENTS_SQL.largest_of_address} (\n{EVENTS_SQL.visible}))\nORDER BY e.created_at_ns DESC, e.id DESC LIMIT 1"
)
_POINTER = f"{EVENTS_SQL.newest_fenced}\n{EVENTS_SQL.visible}\nORDER BY f.token DESC, f.event_seq DESC LIMIT 1"
_OF_RANGE = f"{EVENTS_SQL.content_rows}\n{EVENTS_SQL.of_range}"
_RECORD_COLUMNS = ["seq", "at_ns", "type", "mesh", "actor", "ref", "body"]
_EVENT_COLUMNS = [
    "seq", "at_ns", "type", "mesh", "id", "pubkey", "kind", "created_at_ns", "recipient", "expiration_s", "event",
]  # fmt: skip
_LOCK_COLUMNS = [
    "seq", "at_ns", "type", "mesh", "resource", "owner", "session", "token", "mode", "tree", "lease_ms", "request_id",
    "wait_ms", "run_id", "boot_ns", "deadline_boot_ns", "former_owner", "former_token", "former_deadline_boot_ns",
    "broken_by",
]  # fmt: skip
#: feed -> its columns and the statement that reads it
_FEEDS = {
    "journal": (_RECORD_COLUMNS, EVENTS_SQL.feed_journal),
    "events": (_EVENT_COLUMNS, EVENTS_SQL.feed_events),
    "deliveries": (_RECORD_COLUMNS, EVENTS_SQL.feed_deliveries),
    "locks": (_LOCK_COLUMNS, EVENTS_SQL.feed_locks),
}


class EventReads:
    """Reads of a relay's store."""

    _reads: SnapshotReads
    _clock: Clock

    def __init__(self) -> None:
        self._counting = asyncio.Lock()

    async def extent(self) -> Extent:
        return await self._reads.run(read_extent)

    async def last_token(self) -> int:
        return await self._reads.run(last_token)

    async def query(self, query: Query) -> Page:
        def read(db: ServerConnection) -> Page:
            now_ns, span = self._clock.wall_ns(), range_of(query, read_extent(db).head)
            plans = [plan_filter(db, each, query.scope, now_ns, (span.low, span.high)) for each in query.filters]
            return read_page(db, plans, span, query.limit, query.max_bytes, self._clock)

        return await self._reads.run(read)

    async def history(self, coordinate: Coordinate, query: Query) -> Page:
        def read(db: ServerConnection) -> Page:
            plan = plan_history(coordinate, query.scope, self._clock.wall_ns())
            span = range_of(query, read_extent(db).head)
            return read_page(db, [plan], span, query.limit, query.max_bytes, self._clock)

        return await self._reads.run(read)

    async def count(self, filters: Sequence[Filter], scope: Scope) -> int:
        total, left = 0, Range(0, (await self.extent()).head, False)
        while not left.is_empty:
            async with self._counting:  # one read of the pool: counts take turns and leave the others to queries
                part, left = await self._reads.run(self._count_in(filters, scope, left))
            total += part
        return total

    async def event(self, event_id: str, scope: Scope) -> StoredEvent | None:
        return await self._one(_ONE, scope, bytes.fromhex(event_id))

    async def current(self, coordinate: Coordinate, scope: Scope) -> StoredEvent | None:
        term, parameters = address_term(coordinate), scope_parameters(scope, self._clock.wall_ns())

        def read(db: ServerConnection) -> StoredEvent | None:
            found = db.row(_CURRENT, *parameters, term) or db.row(_LARGEST, *parameters, term)
            return None if found is None or found[1] is None else StoredEvent(*found)

        return await self._reads.run(read)

    async def pointer(self, mesh: str, resource: str, scope: Scope) -> StoredEvent | None:
        return await self._one(_POINTER, scope, mesh, resource.encode())

    async def journal(self, after_seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
        return await self._reads.run(lambda db: read_after(db, after_seq, limit, types))

    async def newest_journal(
        self, after_seq: int, through_seq: int, limit: int, types: Collection[str] | None = None
    ) -> list[Record]:
        return await self._reads.run(lambda db: read_newest(db, after_seq, through_seq, limit, types))

    async def contents(self, after_seq: int, through_seq: int) -> list[tuple[bytes | None, bytes | None]]:
        return await self._reads.run(lambda db: db.rows(EVENTS_SQL.contents, after_seq, through_seq))

    async def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        return await self._reads.run(lambda db: contents_of_ids(db, ids))

    async def contents_between(self, after_seq: int, through_seq: int) -> list[ContentRow]:
        return await self._reads.run(lambda db: content_rows(db, _OF_RANGE, after_seq, through_seq))

    async def event_keys(self, wanted: Filter, after_seq: int, through_seq: int) -> list[tuple[int, bytes]]:
        _ids, *conditions = filter_parameters(wanted)
        parameters = (after_seq, through_seq, *conditions)
        rows: list[Any] = await self._reads.run(lambda db: db.rows(EVENTS_SQL.event_keys, *parameters))
        return rows

    async def feed(self, name: str, after_seq: int, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        if name not in _FEEDS:
            raise error("feed_unknown", feed=name)
        columns, statement = _FEEDS[name]
        rows = await self._reads.run(lambda db: db.rows(statement, after_seq, limit))
        rows = [tuple([each.decode() if isinstance(each, bytes) else each for each in row]) for row in rows]
        return list(columns), [_lock_fact(Record(*row)) for row in rows] if name == "locks" else rows

    async def space(self) -> StoreSpace:
        total = await self._reads.run(lambda db: db.value("SELECT pg_database_size(current_database())"))
        return StoreSpace(total, 0, False)

    async def usage(self) -> dict[str, Usage]:
        rows = await self._reads.run(lambda db: db.rows(EVENTS_SQL.all_usage))
        return {mesh: Usage(events, bytes_) for mesh, events, bytes_ in rows}

    async def mesh_rows(self) -> MeshRows:
        return await self._reads.run(read_mesh_rows)

    async def locks(self, meshes: frozenset[str] | None, after: LockPosition, limit: int) -> list[LockEntry]:
        return await self._reads.run(lambda db: read_locks(db, meshes, after, limit))

    async def _one(self, statement: str, scope: Scope, *parameters: Any) -> StoredEvent | None:
        given = (*scope_parameters(scope, self._clock.wall_ns()), *parameters)
        found = await self._reads.run(lambda db: db.row(statement, *given))
        return None if found is None else StoredEvent(*found)

    def _count_in(
        self, filters: Sequence[Filter], scope: Scope, left: Range
    ) -> Callable[[ServerConnection], tuple[int, Range]]:
        def read(db: ServerConnection) -> tuple[int, Range]:
            now_ns = self._clock.wall_ns()
            plans = [plan_filter(db, each, scope, now_ns, (left.low, left.high)) for each in filters]
            return count_matches(db, plans, left, self._clock)

        return read


def _lock_fact(record: Record) -> tuple[Any, ...]:
    """Return a record of a lock as a row of the feed."""
    body = record.decoded_body()
    get = body.get
    return (
        *record[:4],
        None if record.type == "lock.run_started" else record.ref,
        get("owner"),
        get("session") or "",
        get("token"),
        "shared" if get("shared") else "exclusive",
        int(get("tree") or 0),
        *map(get, ("lease_ms", "request_id", "wait_ms", "run_id")),
        get("granted_boot_ns", get("boot_ns")),
        *map(get, ("deadline_boot_ns", "former_owner", "former_token", "former_deadline_boot_ns")),
        record.actor if record.type == "lock.broken" else None,
    )
