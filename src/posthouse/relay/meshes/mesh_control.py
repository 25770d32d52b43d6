"""Limits, usage and state of meshes, as admins of a mesh and of the relay see and change them.

Admins of a mesh set its own limits, within what admins of the relay allow. Only the latter suspend, resume and delete
a mesh. A suspended mesh keeps everything but admits no node. A deleted mesh loses members and rights at once and its
content in the background; its name stays taken, so that old invites and cursors never mean another mesh.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from posthouse.model.errors import error
from posthouse.model.mesh_limits import MeshLimits, beyond, validate_limits
from posthouse.model.node import DEFAULT_MESH, PINCH_MESH
from posthouse.relay.accept.mesh_registry import Mesh, Right
from posthouse.relay.meshes.administration import MeshChanges
from posthouse.relay.store.event_rows import Usage
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.mesh_rows import LimitSource, LimitsRow, MeshRow, MeshState

Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class MeshControl:
    """Changes limits and states of meshes; the first argument is the node that asks."""

    def __init__(self, changes: MeshChanges, store: RelayStore, on_changed: Callable[[], None]) -> None:
        self._changes = changes
        self._meshes = changes.meshes
        self._store = store
        #: called after a change that the sweeper has to apply
        self._on_changed = on_changed

    def find(self, actor: str, mesh: str) -> Mesh:
        """Return a mesh that the actor is a member of, or any for admins of the relay."""
        if self._is_relay_admin(actor):
            return self._meshes.find(mesh)
        return self._meshes.require(actor, mesh, Right.READ)

    async def usage(self, actor: str, mesh: str) -> Usage:
        """Return what a mesh has stored."""
        self.find(actor, mesh)
        return (await self._store.usage()).get(mesh, Usage(0, 0))

    async def set_limits(self, actor: str, mesh: str, source: LimitSource, limits: MeshLimits) -> MeshLimits:
        """Replace one set of limits; return the limits in force."""
        validate_limits(limits)
        row = LimitsRow(mesh, source, limits)

        def prepare() -> Change:
            found = self._find_for_limits(actor, mesh, source)
            if source is LimitSource.MESH:
                for name, wanted, most in beyond(limits, found.limit_sets[LimitSource.RELAY]):
                    raise error("mesh_limit_too_high", name=name, wanted=wanted, most=most, mesh=mesh)

            def write(unit: Unit) -> None:
                unit.save_limits(row)
                body = {"source": source.value, "limits": limits}
                unit.append("mesh.limits_set", mesh=mesh, actor=actor, ref=mesh, body=body)

            return write, lambda _: found.put_limits(source, limits)

        await self._changes.make(prepare)
        self._on_changed()
        return self._meshes.find(mesh).limits

    def _find_for_limits(self, actor: str, mesh: str, source: LimitSource) -> Mesh:
        if source is LimitSource.RELAY or self._is_relay_admin(actor):
            self._meshes.require(actor, DEFAULT_MESH, Right.ADMINISTER)
            return self._meshes.find(mesh)
        return self._meshes.require(actor, mesh, Right.ADMINISTER)

    async def suspend(self, actor: str, mesh: str, *, is_suspended: bool) -> MeshRow:
        """Suspend a mesh for all nodes, or let its members use it again."""
        state = MeshState.SUSPENDED if is_suspended else MeshState.ACTIVE

        def prepare() -> tuple[Callable[[Unit], MeshRow], Callable[[MeshRow], None]]:
            row = replace(self._find_other(actor, mesh).row, state=state)

            def write(unit: Unit) -> MeshRow:
                unit.save_mesh(row)
                unit.append("mesh.suspended" if is_suspended else "mesh.resumed", mesh=mesh, actor=actor, ref=mesh)
                return row

            return write, self._meshes.put

        return await self._changes.make(prepare)

    async def delete(self, actor: str, mesh: str) -> None:
        """Delete a mesh permanently: it loses its members at once, and its content in the background."""

        def prepare() -> Change:
            former = self._find_other(actor, mesh).row
            row = replace(former, is_open=False, state=MeshState.DELETED, approves_keys=False)

            def write(unit: Unit) -> None:
                unit.clear_mesh(mesh)
                unit.save_mesh(row)
                unit.append("mesh.deleted", mesh=mesh, actor=actor, ref=mesh)
                unit.begin_mesh_erasure(mesh, actor)

            return write, lambda _: self._meshes.drop(mesh)

        await self._changes.make(prepare)
        self._on_changed()

    def _find_other(self, actor: str, mesh: str) -> Mesh:
        """Return a mesh that the relay can do without, for an admin of the relay."""
        self._meshes.require(actor, DEFAULT_MESH, Right.ADMINISTER)
        if mesh in (DEFAULT_MESH, PINCH_MESH):
            raise error("mesh_needed", mesh=mesh)
        return self._meshes.find(mesh)

    def _is_relay_admin(self, node: str) -> bool:
        return Right.ADMINISTER in self._meshes.rights(node, DEFAULT_MESH)
