"""Reading for a node: what it may see of the store, with cursors as the wire gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.journal.read import Record, resolve
from posthouse.model.coordinate import Coordinate
from posthouse.model.errors import error
from posthouse.model.event_structure import is_event_id
from posthouse.model.filters import Filter
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.node import DEFAULT_MESH
from posthouse.relay.meshes.registry import Mesh, Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.store.interface import Page, Query, RelayStore, Scope, StoredEvent

Order = Literal["asc", "desc"]


class Reads:
    """Every read of the relay; each names the node it is for."""

    def __init__(self, store: RelayStore, meshes: Meshes) -> None:
        self.store = store
        #: rights of nodes in meshes, as committed
        self.meshes = meshes

    def scope(self, node: str, filters: Sequence[Filter] = ()) -> Scope:
        """Return what a node may see; a filter that names a mesh it may not read is refused."""
        for wanted in filters:
            if wanted.mesh is not None:
                self.meshes.demand(node, wanted.mesh, Right.READ)
        return Scope(node, self.meshes.readable(node))

    def cursor(self, seq: int) -> str:
        """Return the cursor of a place in this store."""
        return str(Cursor(self.store.epoch, seq))

    async def query(
        self,
        node: str,
        filters: Sequence[Filter],
        *,
        cursor: str | None = None,
        limit: int = QUERY_MAX_LIMIT,
        order: Order = "asc",
    ) -> Page:
        """Return stored events that match one of the filters, in commit order."""
        scope = self.scope(node, filters)
        from_seq = await self._from_seq(cursor)
        return await self.store.query(Query(filters, scope, from_seq, limit, order == "desc"))

    async def count(self, node: str, filters: Sequence[Filter]) -> int:
        """Return how many stored events match one of the filters."""
        return await self.store.count(filters, self.scope(node, filters))

    async def event(self, node: str, event_id: str) -> StoredEvent:
        """Return one event, or raise event_unknown."""
        found = await self.store.event(event_id, self.scope(node)) if is_event_id(event_id) else None
        if found is None:
            raise error("event_unknown", id=event_id[:64])
        return found

    async def address(self, node: str, coordinate: Coordinate) -> StoredEvent:
        """Return the latest event of a coordinate, or raise address_unknown."""
        found = await self.store.current(coordinate, self.scope(node))
        if found is None:
            raise error("address_unknown", coordinate=str(coordinate))
        return found

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
        return await self.store.history(coordinate, query)

    async def journal(
        self,
        node: str,
        *,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = QUERY_MAX_LIMIT,
    ) -> tuple[list[Record], str]:
        """Return records of the journal and the cursor after them; admins of the relay only."""
        self.demand_admin(node)
        seq = resolve(await self.store.extent(), after)
        records = await self.store.journal(seq, limit, types)
        return records, self.cursor(records[-1].seq if records else seq)

    async def feed(
        self, node: str, name: str, *, after: str | None = None, limit: int = QUERY_MAX_LIMIT
    ) -> tuple[list[str], list[tuple[Any, ...]], str]:
        """Return columns and rows of a feed and the cursor after them; admins of the relay only."""
        self.demand_admin(node)
        seq = resolve(await self.store.extent(), after)
        columns, rows = await self.store.feed(name, seq, limit)
        return columns, rows, self.cursor(rows[-1][0] if rows else seq)

    def meshes_of(self, node: str) -> list[dict[str, Any]]:
        """Return the meshes a node may read: name, whether it is open, and its role and member name there."""
        found = [mesh for mesh in self.meshes.all() if Right.READ in mesh.rights(node)]
        return [_describe(mesh, node) for mesh in found]

    def demand_admin(self, node: str) -> None:
        """Raise unless a node administers the relay: it is an admin of main."""
        self.meshes.demand(node, DEFAULT_MESH, Right.ADMINISTER)

    async def _from_seq(self, cursor: str | None) -> int | None:
        """Return the seq a cursor names; events outlive the journal's horizon, so it is no bound here."""
        if cursor is None:
            return None
        extent = await self.store.extent()
        place = parse_cursor(cursor)
        is_below_horizon = place.epoch == extent.epoch and place.seq < extent.pruned_through
        return place.seq if is_below_horizon else resolve(extent, cursor)


def _describe(mesh: Mesh, node: str) -> dict[str, Any]:
    member = mesh.members.get(node)
    return {
        "mesh": mesh.row.mesh,
        "open": mesh.row.is_open,
        "role": mesh.role(node),
        "name": None if member is None else member.name,
    }
