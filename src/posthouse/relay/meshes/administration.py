"""Meshes, members and access rows: what admins change, and the meshes that a relay creates at start.

Changes run one at a time: each is checked against memory, committed with its journal record, then applied to memory.
A caller that disconnects does not interrupt its change. At start the relay closes a main mesh that must not be open;
it never opens one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from posthouse.model.errors import error
from posthouse.model.node import (
    DEFAULT_MESH,
    PINCH_MESH,
    Role,
    looks_like_key,
    name_skeleton,
    validate_member_name,
    validate_node_id,
    validate_served_mesh_name,
)
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.accept.mesh_registry import Mesh, Meshes, Right
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import MeshesChanged, if_current
from posthouse.relay.wire.mesh_rows import ALL_NODES, AccessRow, InviteRow, MemberRow, MeshRow, MeshRows

R = TypeVar("R")


class MeshChanges:
    """Makes all changes to meshes, one at a time."""

    def __init__(self, store: RelayStore, meshes: Meshes, committer: GroupCommitter) -> None:
        self._store = store
        self._committer = committer
        self.meshes = meshes
        self._gate = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    async def make(self, prepare: Callable[[], tuple[Callable[[Unit], R], Callable[[R], None]]]) -> R:
        """Make a change.

        `prepare` checks the present state. It raises a refusal, or returns a function that writes the change and one
        that applies it to memory after the commit.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._make(prepare, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await answer

    async def _make(
        self,
        prepare: Callable[[], tuple[Callable[[Unit], R], Callable[[R], None]]],
        answer: asyncio.Future[R],
    ) -> None:
        try:
            async with self._gate:
                result = await self._decide_and_write(prepare)
        except Exception as failure:  # noqa: BLE001 - raised to the caller, who awaits the answer
            if not answer.done():
                answer.set_exception(failure)
            return
        if not answer.done():  # the caller may be gone
            answer.set_result(result)

    async def _decide_and_write(self, prepare: Callable[[], tuple[Callable[[Unit], R], Callable[[R], None]]]) -> R:
        while True:
            write, apply = prepare()
            self._committer.flush_deferred()  # a block closes deliveries: it must see them as sent
            try:
                result = await self._store.submit(if_current(write, self.meshes.changed_at))
            except MeshesChanged:  # by now memory has the change of the other relay
                continue
            apply(result)
            return result


MAX_MESHES = 1_000  # of one relay: each takes memory as long as the relay runs
MAX_MESHES_PER_KEY = 50  # so that one key cannot use up the meshes of all
MAX_MEMBERS = 10_000  # listed in one mesh
MAX_ACCESS = 10_000  # access rows of one mesh
Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class Administration:
    """Creates meshes and manages their members and access; the first argument is the node that asks."""

    def __init__(self, changes: MeshChanges, *, may_open_main: bool = True) -> None:
        self._changes = changes
        self._meshes = changes.meshes
        self._may_open_main = may_open_main

    async def create_mesh(self, actor: str, mesh: str, *, is_open: bool = False, name: str | None = None) -> MeshRow:
        """Create a mesh with the actor as its admin under a member name; members of main may."""
        _refuse_reserved(validate_served_mesh_name(mesh))
        row = MeshRow(mesh, is_open, actor, 0)

        def prepare() -> Change:
            main = self._meshes.require(actor, DEFAULT_MESH, Right.WRITE)
            self._meshes.check_free(mesh)
            if Right.ADMINISTER not in main.rights(actor):  # an admin of the relay is never shut out
                self._check_mesh_quota(actor)
            known = main.members.get(actor)
            given = _check_key_likeness(validate_member_name(name or (known.name if known else "admin")))
            admin = MemberRow(mesh, actor, given, Role.ADMIN)

            def write(unit: Unit) -> None:
                unit.save_mesh(MeshRow(mesh, is_open, actor, unit.now_ns))
                unit.append("mesh.created", mesh=mesh, actor=actor, ref=mesh, body={"open": is_open})
                _join(unit, admin, actor)

            def apply(_: None) -> None:
                self._meshes.put(row)
                self._meshes.find(mesh).put_member(admin)

            return write, apply

        await self._changes.make(prepare)
        return row

    def _check_mesh_quota(self, actor: str) -> None:
        meshes = self._meshes.all()
        created = sum([mesh.row.creator == actor for mesh in meshes])
        if created >= MAX_MESHES_PER_KEY:
            raise error("quota_reached", count=created, what="meshes")
        if len(meshes) >= MAX_MESHES:
            raise error("mesh_limit", count=len(meshes))

    async def set_open(self, actor: str, mesh: str, *, is_open: bool) -> MeshRow:
        """Open a mesh to every key that authenticates, or close it to all but its members; admins only."""
        _refuse_reserved(mesh)

        def prepare() -> tuple[Callable[[Unit], MeshRow], Callable[[MeshRow], None]]:
            former = self._meshes.require(actor, mesh, Right.ADMINISTER).row
            if is_open and mesh == DEFAULT_MESH and not self._may_open_main:
                raise error("main_stays_closed")
            row = replace(former, is_open=is_open)

            def write(unit: Unit) -> MeshRow:
                unit.save_mesh(row)
                unit.append("mesh.changed", mesh=mesh, actor=actor, ref=mesh, body={"open": is_open})
                return row

            return write, self._meshes.put

        return await self._changes.make(prepare)

    def members(self, actor: str, mesh: str) -> list[MemberRow]:
        """Return the members, sorted by name."""
        found = self._meshes.require(actor, mesh, Right.READ)
        return sorted(found.members.values(), key=lambda member: member.name)

    async def save_member(self, actor: str, mesh: str, node: str, name: str, role: Role) -> MemberRow:
        """Add a member, or change its name or role; in an open mesh a node may add itself."""
        validate_node_id(node)
        row = MemberRow(mesh, node, validate_member_name(name), role)

        def prepare() -> Change:
            found = self._meshes.find(mesh)
            lists_itself = actor == node and Right.WRITE in found.rights(actor) and found.role(actor) is role
            if not lists_itself:
                self._meshes.require(actor, mesh, Right.ADMINISTER)
            check_member(found, row)

            def write(unit: Unit) -> None:
                if node not in found.members:
                    _join(unit, row, actor)
                    return
                unit.save_member(row)
                if role is not Role.ADMIN:
                    end_invites(unit, mesh, node, actor, "creator_demoted")
                body = {"name": row.name, "role": row.role.value}
                unit.append("member.changed", mesh=mesh, actor=actor, ref=node, body=body)

            return write, lambda _: found.put_member(row)

        await self._changes.make(prepare)
        return row

    async def remove_member(self, actor: str, mesh: str, node: str) -> None:
        """Remove a member with its subscriptions and the invites it made; a member may remove itself."""

        def prepare() -> Change:
            found = self._meshes.find(mesh)
            if actor != node:
                self._meshes.require(actor, mesh, Right.ADMINISTER)
            elif node in found.held:  # it could join again under its name, without approval
                raise error("key_not_approved", node=node, mesh=mesh)
            if node not in found.members:
                raise error("member_unknown", node=node, mesh=mesh)
            if found.admins() == [node]:
                raise error("last_admin", node=node, mesh=mesh)
            return lambda unit: end_membership(unit, found, node, actor), lambda _: found.drop_member(node)

        await self._changes.make(prepare)

    def access(self, actor: str, mesh: str) -> list[AccessRow]:
        """Return the access rows; the row for all nodes comes first."""
        found = self._meshes.require(actor, mesh, Right.ADMINISTER)
        return sorted(found.access.values(), key=lambda row: row.node)

    async def save_access(self, actor: str, row: AccessRow) -> None:
        """Set the rights that a node, or every node without its own row, is denied."""
        if row.node != ALL_NODES:
            validate_node_id(row.node)

        def prepare() -> Change:
            found = self._meshes.require(actor, row.mesh, Right.ADMINISTER)
            if row.node not in found.access and len(found.access) >= MAX_ACCESS:
                raise error("mesh_row_limit", mesh=row.mesh, count=len(found.access), what="access rows")
            verdicts = {"read": row.read.value, "write": row.write.value, "lock": row.lock.value}

            def write(unit: Unit) -> None:
                unit.save_access(row)
                unit.append("mesh.access_set", mesh=row.mesh, actor=actor, ref=row.node, body=verdicts)

            return write, lambda _: _put_access(found, row)

        await self._changes.make(prepare)

    async def remove_access(self, actor: str, mesh: str, node: str) -> None:
        """Remove an access row."""

        def prepare() -> Change:
            found = self._meshes.require(actor, mesh, Right.ADMINISTER)
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
    """Raise an error if a member cannot have this name or role."""
    if row.node in found.retired:
        raise error("successor_in_use", successor=row.node, reason="it was retired")
    present = found.members.get(row.node)
    if present is None or present.name != row.name:  # names from before these rules stay valid
        _check_name(found, row, present)
    if found.admins() == [row.node] and row.role is not Role.ADMIN:
        raise error("last_admin", node=row.node, mesh=row.mesh)
    most = min(MAX_MEMBERS, found.limits.max_members or MAX_MEMBERS)
    if row.node not in found.members and len(found.members) >= most:
        raise error("mesh_row_limit", mesh=row.mesh, count=len(found.members), what="members")


def _check_name(found: Mesh, row: MemberRow, present: MemberRow | None) -> None:
    _check_key_likeness(row.name)
    holder = found.names.get(row.name)
    if holder is not None and holder != row.node:
        raise error("member_name_taken", name=row.name, mesh=row.mesh)
    others = found.alike.get(name_skeleton(row.name), set()) - {present.name if present is not None else ""}
    if others:
        raise error("member_name_similar", name=row.name, other=min(others), mesh=row.mesh)


def _check_key_likeness(name: str) -> str:
    if looks_like_key(name):
        raise error("member_name_like_key", name=name)
    return name


def _join(unit: Unit, row: MemberRow, actor: str) -> None:
    unit.save_member(row)
    body = {"name": row.name, "role": row.role.value}
    unit.append("member.joined", mesh=row.mesh, actor=actor, ref=row.node, body=body)


def end_membership(unit: Unit, found: Mesh, node: str, actor: str) -> None:
    """Remove a member with its subscriptions and the invites it made."""
    mesh = found.row.mesh
    for pattern in found.subscriptions.get(node, ()):
        unit.remove_subscription(mesh, node, pattern)
    unit.remove_member(mesh, node)
    unit.remove_held_key(mesh, node)
    end_invites(unit, mesh, node, actor, "creator_left")
    unit.append("member.left", mesh=mesh, actor=actor, ref=node)


def end_invites(unit: Unit, mesh: str, creator: str, actor: str, reason: str) -> None:
    """End the invites that a node has made to a mesh."""
    for invite in unit.list_invites(mesh, unit.now_ns):
        if invite.creator == creator:
            revoke_invite(unit, invite, actor, reason)


def revoke_invite(unit: Unit, invite: InviteRow, actor: str, reason: str) -> None:
    """End an invite and record why."""
    unit.revoke_invite(invite.invite_id)
    unit.append("mesh.invite_revoked", mesh=invite.mesh, actor=actor, ref=invite.invite_id, body={"reason": reason})


def _put_access(found: Mesh, row: AccessRow) -> None:
    found.access[row.node] = row
    found.clear_rights()


def _drop_access(found: Mesh, node: str) -> None:
    del found.access[node]
    found.clear_rights()


async def prepare_main(store: RelayStore, relay: str, *, is_open: bool, admins: Iterable[str]) -> MeshRows:
    """Create main and add its admins where they are missing; return all meshes.

    A main that must not be open is closed; a closed one is never opened here.
    """
    return await _prepare_mesh(store, DEFAULT_MESH, relay, is_open, tuple(admins))


async def prepare_pinch(store: RelayStore, relay: str, admins: Iterable[str]) -> MeshRows:
    """Create the mesh of Pinch addresses and add the relay's admins; return all meshes."""
    rows = await store.mesh_rows()
    creators = {row.creator for row in rows.meshes if row.mesh == PINCH_MESH}
    if any(row.mesh == PINCH_MESH and row.node in creators for row in rows.members):  # the relay itself is not a member
        raise error("pinch_not_ready", mesh=PINCH_MESH)
    return await _prepare_mesh(store, PINCH_MESH, relay, False, tuple(admins))


async def _prepare_mesh(store: RelayStore, mesh: str, relay: str, is_open: bool, admins: tuple[str, ...]) -> MeshRows:
    await store.submit(lambda unit: _prepare(unit, mesh, relay, is_open, admins))
    return await store.mesh_rows()


def _prepare(unit: Unit, mesh: str, relay: str, is_open: bool, admins: tuple[str, ...]) -> None:
    rows = unit.deliveries.audience_rows(mesh)
    present = next(iter(rows.meshes), None)
    if present is None:
        unit.save_mesh(MeshRow(mesh, is_open, relay, unit.now_ns))
        unit.append("mesh.created", mesh=mesh, actor=relay, ref=mesh, body={"open": is_open})
    elif present.is_open and not is_open:
        unit.save_mesh(replace(present, is_open=False))
        unit.append("mesh.changed", mesh=mesh, actor=relay, ref=mesh, body={"open": False})
    members = {row.node: row for row in rows.members}
    names = {name_skeleton(row.name) for row in members.values()}
    for node in admins:
        _appoint(unit, mesh, relay, node, members.get(node), names)


def _appoint(unit: Unit, mesh: str, relay: str, node: str, present: MemberRow | None, names: set[str]) -> None:
    if present is not None and present.role is Role.ADMIN:
        return
    name = present.name if present is not None else _free_name(names)
    unit.save_member(MemberRow(mesh, node, name, Role.ADMIN))
    type_ = "member.joined" if present is None else "member.changed"
    unit.append(type_, mesh=mesh, actor=relay, ref=node, body={"name": name, "role": Role.ADMIN.value})


def _free_name(names: set[str]) -> str:
    name, number = "admin", 1
    while name_skeleton(name) in names:
        number += 1
        name = f"admin-{number}"
    names.add(name_skeleton(name))
    return name
