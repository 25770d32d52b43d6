"""`posthouse mesh subscriptions`: the topics whose messages this node wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.mesh.place import Mesh
from posthouse.cli.reach import DEFAULT_REACH, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def subscriptions(
    mesh: Mesh,
    /,
    *,
    add: Annotated[str | None, Parameter(help="Subscribe to topics that match this pattern.")] = None,
    remove: Annotated[str | None, Parameter(help="End the subscription with this pattern.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the patterns this node is subscribed to, after changing them if asked to.

    For example:

        posthouse mesh subscriptions team --add 'alerts.>'
        posthouse mesh subscriptions team --remove 'alerts.>' --json
    """

    async def work(client: Client) -> list[str]:
        if add is not None:
            await client.meshes.subscribe(mesh, add)
        if remove is not None:
            await client.meshes.unsubscribe(mesh, remove)
        return await client.meshes.subscriptions(mesh)

    found = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "subscriptions": found}, table(("pattern",), [(each,) for each in found]))
