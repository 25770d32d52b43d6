"""Meshes, members and access: what admins decide."""

from __future__ import annotations

from collections.abc import Callable

from posthouse.model.errors import error
from posthouse.model.node import (
    DEFAULT_MESH,
    PINCH_MESH,
    validate_member_name,
    validate_mesh_name,
    validate_node_id,
)
from posthouse.relay.meshes.change import Changes
from posthouse.relay.meshes.registry import Mesh
from posthouse.relay.meshes.rights import Right
from posthouse.relay.meshes.rows import EVERYBODY, AccessRow, MemberRow, MeshRow, Role
from posthouse.relay.store.interface import Unit

MAX_MESHES = 1_000  # of one relay: each costs memory for ever
MAX_MEMBERS = 10_000  # listed in one mesh
MAX_ACCESS = 10_000  # access rows of one mesh

Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class Administration:
    """Creates meshes and decides who is in them; every method names who asks first."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._meshes = changes.meshes

    async def create_mesh(self, actor: str, mesh: str, *, is_open: bool = False, name: str | None = None) -> MeshRow:
        """Create a mesh that the actor administers under a member name of its own; members of main may."""
        _refuse_reserved(validate_mesh_name(mesh))
        row = MeshRow(mesh, is_open, actor, 0)

        def prepare() -> Change:
            main = self._meshes.demand(actor, DEFAULT_MESH, Right.WRITE)
            if mesh in self._meshes:
                raise error("mesh_exists", mesh=mesh)
            if len(self._meshes) >= MAX_MESHES:
                raise error("mesh_limit", count=len(self._meshes))
            known = main.members.get(actor)
            admin = MemberRow(mesh, actor, validate_member_name(name or (known.name if known else "admin")), Role.ADMIN)

            def write(unit: Unit) -> None:
                unit.save_mesh(MeshRow(mesh, is_open, actor, unit.now_ns))
                unit.append("mesh.created", mesh=mesh, actor=actor, ref=mesh, body={"open": is_open})
                _join(unit, admin, actor)

            def take_over(_: None) -> None:
                self._meshes.put(row)
                self._meshes.find(mesh).put_member(admin)

            return write, take_over

        await self._changes.make(prepare)
        return row

    async def set_open(self, actor: str, mesh: str, *, is_open: bool) -> None:
        """Open a mesh to any key that authenticates, or close it to all but listed nodes."""
        _refuse_reserved(mesh)

        def prepare() -> Change:
            former = self._meshes.demand(actor, mesh, Right.ADMINISTER).row
            row = MeshRow(mesh, is_open, former.creator, former.created_at_ns)

            def write(unit: Unit) -> None:
                unit.save_mesh(row)
                unit.append("mesh.changed", mesh=mesh, actor=actor, ref=mesh, body={"open": is_open})

            return write, lambda _: self._meshes.put(row)

        await self._changes.make(prepare)

    def members(self, actor: str, mesh: str) -> list[MemberRow]:
        """Return the listed members, by name."""
        found = self._meshes.demand(actor, mesh, Right.READ)
        return sorted(found.members.values(), key=lambda member: member.name)

    async def save_member(self, actor: str, mesh: str, node: str, name: str, role: Role) -> MemberRow:
        """List a node, or change its name or role. In an open mesh a node may list itself as a member."""
        validate_node_id(node)
        row = MemberRow(mesh, node, validate_member_name(name), role)

        def prepare() -> Change:
            found = self._meshes.find(mesh)
            lists_itself = actor == node and Right.WRITE in found.rights(actor) and found.role(actor) is role
            if not lists_itself:
                self._meshes.demand(actor, mesh, Right.ADMINISTER)
            check_member(found, row)

            def write(unit: Unit) -> None:
                if node not in found.members:
                    _join(unit, row, actor)
                    return
                unit.save_member(row)
                body = {"name": row.name, "role": row.role.value}
                unit.append("member.changed", mesh=mesh, actor=actor, ref=node, body=body)

            return write, lambda _: found.put_member(row)

        await self._changes.make(prepare)
        return row

    async def remove_member(self, actor: str, mesh: str, node: str) -> None:
        """Take a node off the list, with its subscriptions; a member may go by itself."""

        def prepare() -> Change:
            found = self._meshes.find(mesh)
            if actor != node:
                self._meshes.demand(actor, mesh, Right.ADMINISTER)
            if node not in found.members:
                raise error("member_unknown", node=node, mesh=mesh)
            if found.admins() == [node]:
                raise error("last_admin", node=node, mesh=mesh)

            def write(unit: Unit) -> None:
                for pattern in found.subscriptions.get(node, ()):
                    unit.remove_subscription(mesh, node, pattern)
                unit.remove_member(mesh, node)
                unit.append("member.left", mesh=mesh, actor=actor, ref=node)

            return write, lambda _: found.drop_member(node)

        await self._changes.make(prepare)

    def access(self, actor: str, mesh: str) -> list[AccessRow]:
        """Return the access rows, that of everybody first."""
        found = self._meshes.demand(actor, mesh, Right.ADMINISTER)
        return sorted(found.access.values(), key=lambda row: row.node)

    async def save_access(self, actor: str, row: AccessRow) -> None:
        """Set what is taken from a node, or from everybody without a row of their own."""
        if row.node != EVERYBODY:
            validate_node_id(row.node)

        def prepare() -> Change:
            found = self._meshes.demand(actor, row.mesh, Right.ADMINISTER)
            if row.node not in found.access and len(found.access) >= MAX_ACCESS:
                raise error("mesh_row_limit", mesh=row.mesh, count=len(found.access), what="access rows")
            verdicts = {"read": row.read.value, "write": row.write.value, "lock": row.lock.value}

            def write(unit: Unit) -> None:
                unit.save_access(row)
                unit.append("mesh.access_set", mesh=row.mesh, actor=actor, ref=row.node, body=verdicts)

            return write, lambda _: _put_access(found, row)

        await self._changes.make(prepare)

    async def remove_access(self, actor: str, mesh: str, node: str) -> None:
        """Give back what an access row took."""

        def prepare() -> Change:
            found = self._meshes.demand(actor, mesh, Right.ADMINISTER)
            if node not in found.access:
                raise error("member_unknown", node=node, mesh=mesh)

            def write(unit: Unit) -> None:
                unit.remove_access(mesh, node)
                unit.append("mesh.access_removed", mesh=mesh, actor=actor, ref=node)

            return write, lambda _: _drop_access(found, node)

        await self._changes.make(prepare)


def _refuse_reserved(mesh: str) -> None:
    if mesh == PINCH_MESH:
        raise error("mesh_reserved", mesh=mesh)


def check_member(found: Mesh, row: MemberRow) -> None:
    """Raise why a member cannot be listed like this."""
    holder = found.names.get(row.name)
    if holder is not None and holder != row.node:
        raise error("member_name_taken", name=row.name, mesh=row.mesh)
    if found.admins() == [row.node] and row.role is not Role.ADMIN:
        raise error("last_admin", node=row.node, mesh=row.mesh)
    if row.node not in found.members and len(found.members) >= MAX_MEMBERS:
        raise error("mesh_row_limit", mesh=row.mesh, count=len(found.members), what="members")


def _join(unit: Unit, row: MemberRow, actor: str) -> None:
    unit.save_member(row)
    body = {"name": row.name, "role": row.role.value}
    unit.append("member.joined", mesh=row.mesh, actor=actor, ref=row.node, body=body)


def _put_access(found: Mesh, row: AccessRow) -> None:
    found.access[row.node] = row
    found.forget_rights()


def _drop_access(found: Mesh, node: str) -> None:
    del found.access[node]
    found.forget_rights()
