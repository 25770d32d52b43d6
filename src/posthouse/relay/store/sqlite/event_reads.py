"""Reading events, the journal and feeds on SQLite, outside the writer; each call sees one committed state.

EventReads implements its part of posthouse.relay.store.protocol.RelayStore. Reads run in the pool and return plain
values. If you change a feed: 1. a migration that adds its next version beside the old one, 2. docs/reference, 3. the
pipeline's reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

import apsw

from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after, read_extent, read_newest
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import Coordinate
from posthouse.model.filters import Filter
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
from posthouse.relay.store.query_pages import Range, count_matches, range_of, read_page
from posthouse.relay.store.sqlite.meshes_and_locks import last_token, read_locks, read_mesh_rows
from posthouse.relay.store.sqlite.queries import (
    EVENTS_SQL,
    content_rows,
    contents_of_ids,
    filter_bindings,
    known_ids,
    plan_filter,
    plan_history,
    scope_bindings,
)
from posthouse.relay.wire.lock_operations import LockEntry, LockPosition
from posthouse.relay.wire.mesh_rows import MeshRows
from posthouse.sqlite.read_pool import ReadPool

_ONE = f"SELECT e.seq, e.raw FROM events AS e WHERE e.seq = :seq AND {EVENTS_SQL.visible}"
_LARGEST = (
    f"SELECT e.seq, e.raw {EVENTS_SQL.largest_of_address} ({EVENTS_SQL.visible})) "
    "ORDER BY e.created_at_ns DESC, e.id DESC LIMIT 1"
)
_POINTER = (
    f"SELECT e.seq, e.raw {EVENTS_SQL.newest_fenced} {EVENTS_SQL.visible} "
    "ORDER BY f.token DESC, f.event_seq DESC LIMIT 1"
)
_OF_RANGE = f"{EVENTS_SQL.content_rows} {EVENTS_SQL.of_range}"
_KEYS = f"{EVENTS_SQL.event_keys} {EVENTS_SQL.wanted}"
#: feed -> the view that is its current version
FEEDS = {
    "journal": "feed_journal_v1",
    "events": "feed_events_v1",
    "deliveries": "feed_deliveries_v1",
    "locks": "feed_locks_v2",
}


class EventReads:
    """Reads of a relay's store."""

    _pool: ReadPool
    _clock: Clock

    def __init__(self) -> None:
        self._counting = asyncio.Lock()

    async def extent(self) -> Extent:
        return await self._pool.run(read_extent)

    async def last_token(self) -> int:
        return await self._pool.run(last_token)

    async def query(self, query: Query) -> Page:
        def read(db: apsw.Connection) -> Page:
            now_ns, span = self._clock.wall_ns(), range_of(query, read_extent(db).head)
            bounds = (span.low, span.high)
            plans = [plan_filter(db, each, query.scope, now_ns, bounds) for each in query.filters]
            return read_page(db, plans, span, query.limit, query.max_bytes, self._clock)

        return await self._pool.run(read)

    async def history(self, coordinate: Coordinate, query: Query) -> Page:
        def read(db: apsw.Connection) -> Page:
            plan = plan_history(db, coordinate, query.scope, self._clock.wall_ns())
            span = range_of(query, read_extent(db).head)
            return read_page(db, [plan], span, query.limit, query.max_bytes, self._clock)

        return await self._pool.run(read)

    async def count(self, filters: Sequence[Filter], scope: Scope) -> int:
        total, left = 0, Range(0, (await self.extent()).head, False)
        while not left.is_empty:
            async with self._counting:  # one read of the pool: counts take turns and leave the others to queries
                part, left = await self._pool.run(self._count_in(filters, scope, left))
            total += part
        return total

    async def event(self, event_id: str, scope: Scope) -> StoredEvent | None:
        now_ns = self._clock.wall_ns()

        def read(db: apsw.Connection) -> StoredEvent | None:
            return _visible_event(db, known_ids(db, [event_id]).get(event_id), scope, now_ns)

        return await self._pool.run(read)

    async def current(self, coordinate: Coordinate, scope: Scope) -> StoredEvent | None:
        now_ns, term = self._clock.wall_ns(), address_term(coordinate)

        def read(db: apsw.Connection) -> StoredEvent | None:
            seq = db.execute(EVENTS_SQL.current_of, (term,)).get
            if seq is None:
                return None
            if found := _visible_event(db, seq, scope, now_ns):
                return found
            return _stored(db.execute(_LARGEST, scope_bindings(scope, now_ns) | {"term": term}).fetchone())

        return await self._pool.run(read)

    async def pointer(self, mesh: str, resource: str, scope: Scope) -> StoredEvent | None:
        bindings = scope_bindings(scope, self._clock.wall_ns()) | {"mesh": mesh, "resource": resource}
        return await self._pool.run(lambda db: _stored(db.execute(_POINTER, bindings).fetchone()))

    async def journal(self, after_seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
        return await self._pool.run(lambda db: read_after(db, after_seq, limit, types))

    async def newest_journal(
        self, after_seq: int, through_seq: int, limit: int, types: Collection[str] | None = None
    ) -> list[Record]:
        return await self._pool.run(lambda db: read_newest(db, after_seq, through_seq, limit, types))

    async def contents(self, after_seq: int, through_seq: int) -> list[tuple[bytes | None, bytes | None]]:
        bindings = (after_seq, through_seq)
        rows: list[Any] = await self._pool.run(lambda db: db.execute(EVENTS_SQL.contents, bindings).fetchall())
        return rows

    async def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        return await self._pool.run(lambda db: contents_of_ids(db, ids))

    async def contents_between(self, after_seq: int, through_seq: int) -> list[ContentRow]:
        return await self._pool.run(lambda db: content_rows(db, _OF_RANGE, (after_seq, through_seq)))

    async def event_keys(self, wanted: Filter, after_seq: int, through_seq: int) -> list[tuple[int, bytes]]:
        bindings = filter_bindings(wanted) | {"low": after_seq, "high": through_seq}
        rows: list[Any] = await self._pool.run(lambda db: db.execute(_KEYS, bindings).fetchall())
        return rows

    async def feed(self, name: str, after_seq: int, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        view = FEEDS.get(name)
        if view is None:
            raise error("feed_unknown", feed=name)

        def read(db: apsw.Connection) -> tuple[list[str], list[tuple[Any, ...]]]:
            columns: list[Any] = db.execute("SELECT name FROM pragma_table_info(?)", (view,)).fetchall()
            # the name of the view comes from the table above, never from the caller
            page = f"SELECT * FROM {view} WHERE seq > ? ORDER BY seq LIMIT ?"
            return [column for (column,) in columns], db.execute(page, (after_seq, limit)).fetchall()

        return await self._pool.run(read)

    async def space(self) -> StoreSpace:
        return await self._pool.run(_read_space)

    async def usage(self) -> dict[str, Usage]:
        rows: list[Any] = await self._pool.run(lambda db: db.execute(EVENTS_SQL.all_usage).fetchall())
        return {mesh: Usage(events, bytes_) for mesh, events, bytes_ in rows}

    async def mesh_rows(self) -> MeshRows:
        return await self._pool.run(read_mesh_rows)

    async def locks(self, meshes: frozenset[str] | None, after: LockPosition, limit: int) -> list[LockEntry]:
        return await self._pool.run(lambda db: read_locks(db, meshes, after, limit))

    def _count_in(
        self, filters: Sequence[Filter], scope: Scope, left: Range
    ) -> Callable[[apsw.Connection], tuple[int, Range]]:
        def read(db: apsw.Connection) -> tuple[int, Range]:
            now_ns = self._clock.wall_ns()
            plans = [plan_filter(db, each, scope, now_ns, (left.low, left.high)) for each in filters]
            return count_matches(db, plans, left, self._clock)

        return read


def _visible_event(db: apsw.Connection, seq: int | None, scope: Scope, now_ns: int) -> StoredEvent | None:
    if seq is None:
        return None
    return _stored(db.execute(_ONE, scope_bindings(scope, now_ns) | {"seq": seq}).fetchone())


def _read_space(db: apsw.Connection) -> StoreSpace:
    page_bytes, pages, free = (int(db.pragma(name)) for name in ("page_size", "page_count", "freelist_count"))
    return StoreSpace(page_bytes * pages, page_bytes * free, db.pragma("auto_vacuum") != 0)


def _stored(row: tuple[int, bytes | None] | None) -> StoredEvent | None:
    return None if row is None or row[1] is None else StoredEvent(row[0], row[1])
