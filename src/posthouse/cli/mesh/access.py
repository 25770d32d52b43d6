"""`posthouse mesh access`: what is taken from a node, or from everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Access, Client

Verdict = Literal["allow", "deny"]
EVERYBODY = "*"


def access(
    mesh: Mesh,
    /,
    *,
    node: Annotated[str | None, Parameter(name="--set", help="Set the row of this member, node id, or `*`.")] = None,
    read: Annotated[Verdict, Parameter(help="Whether it may read.")] = "allow",
    write: Annotated[Verdict, Parameter(help="Whether it may publish.")] = "allow",
    lock: Annotated[Verdict, Parameter(help="Whether it may lock.")] = "allow",
    clear: Annotated[str | None, Parameter(help="Remove the row of this member, node id, or `*`.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the access rows of a mesh, after changing one if asked to.

    A row narrows what a role allows, never widens it; a row of a node counts instead of that of everybody (`*`).

    For example:

        posthouse mesh access team
        posthouse mesh access team --set bob --write deny
        posthouse mesh access team --clear '*' --json
    """

    async def work(client: Client) -> list[Access]:
        if node is not None:
            who = await _resolve(client, node, mesh)
            await client.meshes.set_access(mesh, who, read=read, write=write, lock=lock)
        if clear is not None:
            await client.meshes.clear_access(mesh, await _resolve(client, clear, mesh))
        return await client.meshes.access(mesh)

    found = reach.visit(mesh, work)
    rows = [(each.node, each.read, each.write, each.lock) for each in found]
    output.answer({"mesh": mesh, "access": found}, table(("node", "read", "write", "lock"), rows))


async def _resolve(client: Client, who: str, mesh: str) -> str:
    return who if who == EVERYBODY else await client.meshes.resolve(who, mesh)
