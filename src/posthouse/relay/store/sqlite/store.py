"""The relay's store on SQLite: relay.db through the group-commit writer, with FULL durability.

Implements posthouse.relay.store.interface.RelayStore. Reads run in the pool, one snapshot each, and return plain
values; only the writer's thread ever sees a Unit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.read import Extent, Record, read_after, read_extent
from posthouse.journal.store import Store, exit_process
from posthouse.model.clock import Clock
from posthouse.model.coordinate import Coordinate
from posthouse.model.errors import Fatal
from posthouse.model.filters import Filter
from posthouse.relay.deliver.sqlite import DELIVERIES
from posthouse.relay.deliver.sqlite.reads import SqliteDeliveryReads
from posthouse.relay.locks.rows import LockEntry
from posthouse.relay.locks.table import LOCKS, read_locks
from posthouse.relay.meshes.rows import MeshRows
from posthouse.relay.pinch.sqlite import PINCH, SqlitePinchReads
from posthouse.relay.store.interface import Page, Query, Scope, StoredEvent, Unit
from posthouse.relay.store.sqlite.events import known_ids
from posthouse.relay.store.sqlite.feeds import read_feed
from posthouse.relay.store.sqlite.lookup import find_current, find_event
from posthouse.relay.store.sqlite.mesh_rows import read_mesh_rows
from posthouse.relay.store.sqlite.pages import Range, count_matches, read_page
from posthouse.relay.store.sqlite.plan import SQL, plan_filter, plan_history
from posthouse.relay.store.sqlite.prune import read_contents
from posthouse.relay.store.sqlite.unit import SqliteUnit
from posthouse.sqlite.schema import Component

R = TypeVar("R")
RELAY = Component("relay", "posthouse.relay.store.sqlite")
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
    ) -> None:
        self._clock = clock
        self._store = Store(
            path, COMPONENTS, clock, on_fatal=on_fatal, vfs=vfs, readers=readers, restart_at_pages=_WAL_PAGES
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

    def hand_in(
        self, work: Callable[[Unit], Any], heard: Callable[[Any, BaseException | None], None], *, size: int = 0
    ) -> None:
        self._store.writer.hand_in(lambda tx: work(SqliteUnit(tx, self._clock)), heard, size=size)

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
        tx.db.execute(SQL.walk_ids).fetchall()
