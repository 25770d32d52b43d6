"""`posthouse mesh blocks`: nodes whose messages this node does not want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def blocks(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="Block this member (name or node id).")] = None,
    remove: Annotated[str | None, Parameter(help="Take its messages again.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the nodes this node blocks, after changing them if asked to; the blocked are not told.

    For example:

        posthouse mesh blocks team --add mallory
        posthouse mesh blocks team --remove mallory --json
    """

    async def work(client: Client) -> list[str]:
        if add is not None:
            await client.meshes.block(mesh, await client.meshes.resolve(add, mesh))
        if remove is not None:
            await client.meshes.unblock(mesh, await client.meshes.resolve(remove, mesh))
        return await client.meshes.blocks(mesh)

    found = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "blocks": found}, table(("node",), [(each,) for each in found]))
