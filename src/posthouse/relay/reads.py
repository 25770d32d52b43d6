"""Every read of the relay: each names the requesting node, and returns only what that node may read.

A relay that shares its store serves no reads while it lacks the last commits of the other relays, because one of them
may have revoked a right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from posthouse.journal.cursor import Cursor, parse_cursor, resolve_cursor
from posthouse.journal.digest import Record
from posthouse.model.errors import error
from posthouse.model.event import Coordinate, is_event_id
from posthouse.model.filters import Filter
from posthouse.model.limits import QUERY_MAX_LIMIT, QUERY_PAGE_BYTES
from posthouse.model.lock_scope import validate_resource
from posthouse.model.node import DEFAULT_MESH
from posthouse.relay.accept.mesh_registry import Mesh, Meshes, Right
from posthouse.relay.store.event_rows import Page, Query, Scope, StoredEvent
from posthouse.relay.store.protocol import RelayStore

Order = Literal["asc", "desc"]


class _Author(msgspec.Struct):
    pubkey: str
    created_at_ns: int


_decode_author = msgspec.json.Decoder(_Author).decode


class Reads:
    """Every read of the relay; each names the node that it is for."""

    def __init__(self, store: RelayStore, meshes: Meshes) -> None:
        self.store = store
        #: rights of nodes in meshes, as committed
        self.meshes = meshes

    def require_current(self) -> None:
        """Raise relay_behind if other relays may have taken rights away that this one does not know of."""
        if self.store.shared is not None and not self.store.shared.is_current:
            raise error("relay_behind")

    def scope(self, node: str, filters: Sequence[Filter] = ()) -> Scope:
        """Return which events a node may read; raise if a filter names a mesh that it may not read."""
        self.require_current()
        for each in filters:
            if each.mesh is not None:
                self.meshes.require(node, each.mesh, Right.READ)
        former = tuple(self.meshes.former_keys(node)) if self.meshes.retired else ()
        return Scope(node, self.meshes.readable(node), former)

    def _marked(self, page: Page) -> Page:
        if not self.meshes.has_suspects:
            return page
        return replace(page, events=[self._mark(event) for event in page.events])

    def _mark(self, stored: StoredEvent) -> StoredEvent:
        """Mark an event that its key signed after the time from which an admin does not trust the key."""
        if not self.meshes.has_suspects:
            return stored
        signed = _decode_author(stored.raw)
        retired = self.meshes.retired.get(signed.pubkey)
        is_suspect = retired is not None and retired.marks(signed.created_at_ns, stored.seq)
        return StoredEvent(stored.seq, stored.raw, True) if is_suspect else stored

    def cursor(self, seq: int) -> str:
        """Return the cursor of a seq in this store."""
        return str(Cursor(self.store.epoch, seq))

    async def query(
        self,
        node: str,
        filters: Sequence[Filter],
        *,
        cursor: str | None = None,
        limit: int = QUERY_MAX_LIMIT,
        order: Order = "asc",
        max_bytes: int = QUERY_PAGE_BYTES,
    ) -> Page:
        """Return stored events that match one of the filters, in commit order."""
        scope = self.scope(node, filters)
        from_seq = await self._from_seq(cursor)
        return self._marked(await self.store.query(Query(filters, scope, from_seq, limit, order == "desc", max_bytes)))

    async def count(self, node: str, filters: Sequence[Filter]) -> int:
        """Return how many stored events match one of the filters."""
        return await self.store.count(filters, self.scope(node, filters))

    async def event(self, node: str, event_id: str) -> StoredEvent:
        """Return one event, or raise event_unknown."""
        found = await self.store.event(event_id, self.scope(node)) if is_event_id(event_id) else None
        if found is None:
            raise error("event_unknown", id=event_id[:64])
        return self._mark(found)

    async def address(self, node: str, coordinate: Coordinate) -> StoredEvent:
        """Return the latest event of a coordinate, or raise address_unknown.

        A coordinate stays under the key that wrote it; the author's current key is tried first.
        """
        author = self.meshes.successor(coordinate.pubkey)
        for each in (author, *(self.meshes.former_keys(author) if self.meshes.retired else ())):
            found = await self.store.current(coordinate._replace(pubkey=each), self.scope(node))
            if found is not None:
                return self._mark(found)
        raise error("address_unknown", coordinate=str(coordinate))

    async def pointer(self, node: str, mesh: str, resource: str) -> StoredEvent:
        """Return the newest event under the fence of a resource, over all authors, or raise pointer_unknown."""
        self.meshes.require(node, mesh, Right.READ)
        found = await self.store.pointer(mesh, validate_resource(resource), self.scope(node))
        if found is None:
            raise error("pointer_unknown", mesh=mesh, resource=resource)
        return self._mark(found)

    async def history(
        self,
        node: str,
        coordinate: Coordinate,
        *,
        cursor: str | None = None,
        limit: int = QUERY_MAX_LIMIT,
        order: Order = "asc",
    ) -> Page:
        """Return all versions of a coordinate, in commit order."""
        query = Query((), self.scope(node), await self._from_seq(cursor), limit, order == "desc")
        return self._marked(await self.store.history(coordinate, query))

    async def journal(
        self,
        node: str,
        *,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = QUERY_MAX_LIMIT,
    ) -> tuple[list[Record], str]:
        """Return journal records and the cursor after them; only for admins of the relay."""
        self.require_admin(node)
        seq = resolve_cursor(await self.store.extent(), after)
        records = await self.store.journal(seq, limit, types)
        return records, self.cursor(records[-1].seq if records else seq)

    async def newest_journal(
        self,
        node: str,
        *,
        before: str | None = None,
        types: Collection[str] | None = None,
        limit: int = QUERY_MAX_LIMIT,
    ) -> tuple[list[Record], str | None]:
        """Return journal records newest first, and the cursor before them, None at the end; only for relay admins.

        One call reads a bounded number of records, so it may return fewer than exist; the cursor continues.
        """
        self.require_admin(node)
        extent = await self.store.extent()
        through = extent.head if before is None else min(resolve_cursor(extent, before), extent.head)
        after = max(extent.pruned_through, through - NEWEST_WINDOW)
        found = await self.store.newest_journal(after, through, limit, types)
        through = found[-1].seq - 1 if len(found) == limit else after
        return found, None if through <= extent.pruned_through else self.cursor(through)

    async def feed(
        self, node: str, name: str, *, after: str | None = None, limit: int = QUERY_MAX_LIMIT
    ) -> tuple[list[str], list[tuple[Any, ...]], str]:
        """Return columns and rows of a feed and the cursor after them; only for admins of the relay."""
        self.require_admin(node)
        seq = resolve_cursor(await self.store.extent(), after)
        columns, rows = await self.store.feed(name, seq, limit)
        return columns, rows, self.cursor(rows[-1][0] if rows else seq)

    def meshes_of(self, node: str) -> list[dict[str, Any]]:
        """Return the meshes that a node may read, with its role and its member name in each."""
        found = [mesh for mesh in self.meshes.all() if Right.READ in mesh.rights(node)]
        return [_describe_mesh(mesh, node) for mesh in found]

    def require_admin(self, node: str) -> None:
        """Raise unless a node administers the relay, that is, the mesh main."""
        self.require_current()
        self.meshes.require(node, DEFAULT_MESH, Right.ADMINISTER)

    async def _from_seq(self, cursor: str | None) -> int | None:
        """Return the seq of a cursor; it may be below the journal's horizon, because events outlive their records."""
        if cursor is None:
            return None
        extent = await self.store.extent()
        parsed = parse_cursor(cursor)
        is_below_horizon = parsed.epoch == extent.epoch and parsed.seq < extent.pruned_through
        return parsed.seq if is_below_horizon else resolve_cursor(extent, cursor)


NEWEST_WINDOW = 50_000  # records that one backward page reads at most


def _describe_mesh(mesh: Mesh, node: str) -> dict[str, Any]:
    member = mesh.members.get(node)
    return {
        "mesh": mesh.row.mesh,
        "open": mesh.row.is_open,
        "role": mesh.role(node),
        "name": None if member is None else member.name,
    }
