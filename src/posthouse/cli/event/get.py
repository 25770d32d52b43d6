"""`posthouse event get`: one event by its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def get(
    id: Annotated[str, Parameter(help="The event's id.")],  # noqa: A002 - the domain's word
    /,
    *,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show one event, verified, with its content opened if it is sealed for this node.

    For example:

        posthouse event get 643b6dcfe2204e80670cf8585ec25134e303c68d3efdfb2d0efc7f5668bc739e
        posthouse event get 643b6dcfe2204e80670cf8585ec25134e303c68d3efdfb2d0efc7f5668bc739e --mesh team --json
    """
    from posthouse.cli.event.shown import event_lines, event_value

    async def work(client: Client) -> None:
        stored = await client.get(id)
        output.answer(event_value(client, stored.event, stored.seq), event_lines(client, stored.event, stored.seq))

    reach.visit(mesh, work)
