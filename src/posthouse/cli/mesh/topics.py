"""`posthouse mesh topics`: the topics of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def topics(
    mesh: Mesh,
    /,
    *,
    create: Annotated[str | None, Parameter(help="Make this topic.")] = None,
    remove: Annotated[str | None, Parameter(help="Remove this topic.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the topics of a mesh, after making or removing one if asked to.

    For example:

        posthouse mesh topics team
        posthouse mesh topics team --create alerts.disk --json
    """

    async def work(client: Client) -> list[str]:
        if create is not None:
            await client.meshes.create_topic(mesh, create)
        if remove is not None:
            await client.meshes.remove_topic(mesh, remove)
        return await client.meshes.topics(mesh)

    found = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "topics": found}, table(("topic",), [(each,) for each in found]))
