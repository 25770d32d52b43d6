"""`posthouse mesh members`: who is listed in a mesh, and changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client import Client, Member


def members(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="List this node id, or change its name or role.")] = None,
    name: Annotated[str | None, Parameter(help="The name of the node that is listed.")] = None,
    role: Annotated[
        Literal["reader", "member", "admin"], Parameter(help="The role of the node that is listed.")
    ] = "member",
    remove: Annotated[str | None, Parameter(help="Take this member (name or node id) off the list.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the members of a mesh, after changing them if asked to; admins may change.

    For example:

        posthouse mesh members team
        posthouse mesh members team --add ed25519:03a107...31b8 --name bob --role reader
        posthouse mesh members team --remove bob --json
    """
    if add is not None and name is None:
        raise error("usage", text="--add needs --name")

    async def work(client: Client) -> list[Member]:
        if add is not None and name is not None:
            await client.meshes.add_member(mesh, add, name, role)
        if remove is not None:
            await client.meshes.remove_member(mesh, await client.meshes.resolve(remove, mesh))
        return await client.meshes.members(mesh)

    found = reach.visit(mesh, work)
    rows = [(each.name or "-", each.role, each.node) for each in found]
    output.answer({"mesh": mesh, "members": found}, table(("name", "role", "node"), rows))
