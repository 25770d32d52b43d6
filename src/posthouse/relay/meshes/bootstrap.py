"""The meshes a relay makes itself, and who administers them: made when it starts, before it takes anything.

Main is there always; the mesh of the Pinch wire, whose readers are addresses and no members, when the relay speaks it.
"""

from __future__ import annotations

from collections.abc import Iterable

from posthouse.model.errors import error
from posthouse.model.node import DEFAULT_MESH, PINCH_MESH
from posthouse.relay.meshes.rows import MemberRow, MeshRow, MeshRows, Role
from posthouse.relay.store.interface import RelayStore, Unit


async def prepare_main(store: RelayStore, relay: str, *, is_open: bool, admins: Iterable[str]) -> MeshRows:
    """Make main with its admins, as far as they are missing, and return all meshes.

    A main that must not be open is closed; one that was closed is never opened here.
    """
    return await _prepare_mesh(store, DEFAULT_MESH, relay, is_open, tuple(admins))


async def prepare_pinch(store: RelayStore, relay: str, admins: Iterable[str]) -> MeshRows:
    """Make the mesh of Pinch addresses with the relay's admins, and return all meshes."""
    rows = await store.mesh_rows()
    creators = {row.creator for row in rows.meshes if row.mesh == PINCH_MESH}
    if any(row.mesh == PINCH_MESH and row.node in creators for row in rows.members):  # a relay is no member of its own
        raise error("pinch_not_ready", mesh=PINCH_MESH)
    return await _prepare_mesh(store, PINCH_MESH, relay, False, tuple(admins))


async def _prepare_mesh(store: RelayStore, mesh: str, relay: str, is_open: bool, admins: tuple[str, ...]) -> MeshRows:
    rows = await store.mesh_rows()
    await store.submit(lambda unit: _prepare(unit, mesh, rows, relay, is_open, admins))
    return await store.mesh_rows()


def _prepare(unit: Unit, mesh: str, rows: MeshRows, relay: str, is_open: bool, admins: tuple[str, ...]) -> None:
    present = next((row for row in rows.meshes if row.mesh == mesh), None)
    if present is None:
        unit.save_mesh(MeshRow(mesh, is_open, relay, unit.now_ns))
        unit.append("mesh.created", mesh=mesh, actor=relay, ref=mesh, body={"open": is_open})
    elif present.is_open and not is_open:
        unit.save_mesh(MeshRow(mesh, False, present.creator, present.created_at_ns))
        unit.append("mesh.changed", mesh=mesh, actor=relay, ref=mesh, body={"open": False})
    members = {row.node: row for row in rows.members if row.mesh == mesh}
    names = {row.name for row in members.values()}
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
    while name in names:
        number += 1
        name = f"admin-{number}"
    names.add(name)
    return name
