"""The mesh main, and who administers it: made when a relay starts, before it takes anything."""

from __future__ import annotations

from collections.abc import Iterable

from posthouse.model.node import DEFAULT_MESH
from posthouse.relay.meshes.rows import MemberRow, MeshRow, MeshRows, Role
from posthouse.relay.store.interface import RelayStore, Unit


async def prepare_main(store: RelayStore, relay: str, *, is_open: bool, admins: Iterable[str]) -> MeshRows:
    """Make main with its admins, as far as they are missing, and return all meshes.

    A main that must not be open is closed; one that was closed is never opened here.
    """
    rows = await store.mesh_rows()
    admins = tuple(admins)
    await store.submit(lambda unit: _prepare(unit, rows, relay, is_open, admins))
    return await store.mesh_rows()


def _prepare(unit: Unit, rows: MeshRows, relay: str, is_open: bool, admins: tuple[str, ...]) -> None:
    main = next((row for row in rows.meshes if row.mesh == DEFAULT_MESH), None)
    if main is None:
        unit.save_mesh(MeshRow(DEFAULT_MESH, is_open, relay, unit.now_ns))
        unit.append("mesh.created", mesh=DEFAULT_MESH, actor=relay, ref=DEFAULT_MESH, body={"open": is_open})
    elif main.is_open and not is_open:
        unit.save_mesh(MeshRow(DEFAULT_MESH, False, main.creator, main.created_at_ns))
        unit.append("mesh.changed", mesh=DEFAULT_MESH, actor=relay, ref=DEFAULT_MESH, body={"open": False})
    members = {row.node: row for row in rows.members if row.mesh == DEFAULT_MESH}
    names = {row.name for row in members.values()}
    for node in admins:
        _appoint(unit, relay, node, members.get(node), names)


def _appoint(unit: Unit, relay: str, node: str, present: MemberRow | None, names: set[str]) -> None:
    if present is not None and present.role is Role.ADMIN:
        return
    name = present.name if present is not None else _free_name(names)
    unit.save_member(MemberRow(DEFAULT_MESH, node, name, Role.ADMIN))
    type_ = "member.joined" if present is None else "member.changed"
    unit.append(type_, mesh=DEFAULT_MESH, actor=relay, ref=node, body={"name": name, "role": Role.ADMIN.value})


def _free_name(names: set[str]) -> str:
    name, number = "admin", 1
    while name in names:
        number += 1
        name = f"admin-{number}"
    names.add(name)
    return name
