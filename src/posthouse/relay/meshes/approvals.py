"""Approval of new keys: a mesh may demand that an admin approves the new key of a member before it has any right.

A held key has the place of its member (name, role, queue, subscriptions) and no right in the mesh; the old key has none
either, and messages queue up. Approval gives the rights. Refusal removes the member and denies its new key everything,
so that it cannot come back under the name, even into an open mesh. Keys that wait stay held if the mesh stops demanding
approval.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from posthouse.model.errors import error
from posthouse.model.node import PINCH_MESH
from posthouse.relay.accept.mesh_registry import Mesh, Right
from posthouse.relay.meshes.administration import MAX_ACCESS, MeshChanges, end_membership
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.mesh_rows import AccessRow, HeldKey, MemberRow, MeshRow, Verdict

Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class Approvals:
    """Lists and decides held keys; the first argument is the node that asks, an admin of the mesh."""

    def __init__(self, changes: MeshChanges) -> None:
        self._changes = changes
        self._meshes = changes.meshes

    def waiting(self, actor: str, mesh: str) -> tuple[MeshRow, list[tuple[HeldKey, MemberRow]]]:
        """Return the mesh and its held keys with their members, the longest wait first."""
        found = self._meshes.require(actor, mesh, Right.ADMINISTER)
        held = sorted(found.held.values(), key=lambda row: (row.at_ns, row.node))
        return found.row, [(row, found.members[row.node]) for row in held]

    async def require(self, actor: str, mesh: str, *, is_required: bool) -> None:
        """Start or stop demanding approval of new keys."""
        if mesh == PINCH_MESH:
            raise error("mesh_reserved", mesh=mesh)

        def prepare() -> Change:
            row = replace(self._meshes.require(actor, mesh, Right.ADMINISTER).row, approves_keys=is_required)

            def write(unit: Unit) -> None:
                unit.save_mesh(row)
                unit.append("mesh.approval_set", mesh=mesh, actor=actor, ref=mesh, body={"required": is_required})

            return write, lambda _: self._meshes.put(row)

        await self._changes.make(prepare)

    async def approve(self, actor: str, mesh: str, node: str) -> None:
        """Give a held key the rights of its member."""

        def prepare() -> Change:
            found = self._find_held(actor, mesh, node)

            def write(unit: Unit) -> None:
                unit.remove_held_key(mesh, node)
                unit.append("member.approved", mesh=mesh, actor=actor, ref=node)

            return write, lambda _: found.release(node)

        await self._changes.make(prepare)

    async def refuse(self, actor: str, mesh: str, node: str) -> None:
        """Remove the member of a held key, and deny the key everything in the mesh."""
        denial = AccessRow(mesh, node, Verdict.DENY, Verdict.DENY, Verdict.DENY)

        def prepare() -> Change:
            found = self._find_held(actor, mesh, node)
            if node not in found.access and len(found.access) >= MAX_ACCESS:
                raise error("mesh_row_limit", mesh=mesh, count=len(found.access), what="access rows")

            def write(unit: Unit) -> None:
                unit.append("member.refused", mesh=mesh, actor=actor, ref=node)
                unit.save_access(denial)
                verdicts = {"read": denial.read.value, "write": denial.write.value, "lock": denial.lock.value}
                unit.append("mesh.access_set", mesh=mesh, actor=actor, ref=node, body=verdicts)
                end_membership(unit, found, node, actor)

            def apply(_: None) -> None:
                found.access[node] = denial  # before the entry is removed: other threads read rights
                found.drop_member(node)

            return write, apply

        await self._changes.make(prepare)

    def _find_held(self, actor: str, mesh: str, node: str) -> Mesh:
        found = self._meshes.require(actor, mesh, Right.ADMINISTER)
        if node not in found.held:
            raise error("rotation_not_waiting", node=node, mesh=mesh)
        return found
