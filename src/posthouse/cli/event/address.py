"""`posthouse event address`: what a coordinate stands for now, and what it stood for before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def address(
    coordinate: Annotated[str, Parameter(help="KIND:NODE_ID:D, as in 30000:ed25519:<64 hex>:build/main.")],
    /,
    *,
    history: Annotated[bool, Parameter(negative=(), show_default=False, help="List all of its events.")] = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="How many at most.")] = 50,
    cursor: Annotated[str | None, Parameter(help="Go on where a former answer ended.")] = None,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show the latest event of a coordinate, or with --history all of them in commit order.

    For example:

        posthouse event address "30000:$NODE:build/main"
        posthouse event address "30000:$NODE:build/main" --history --json
    """
    from posthouse.cli.event.shown import event_lines, event_row, event_value

    async def show_latest(client: Client) -> None:
        stored = await client.address(coordinate)
        output.answer(event_value(client, stored.event, stored.seq), event_lines(client, stored.event, stored.seq))

    async def show_history(client: Client) -> None:
        page = await client.history(coordinate, limit=limit, cursor=cursor)
        value = {"events": [event_value(client, e.event, e.seq) for e in page.events], "cursor": page.cursor}
        rows = [event_row(client, each.event, each.seq) for each in page.events]
        output.answer(value, table(("seq", "created", "author", "kind", "content"), rows))

    reach.visit(mesh, show_history if history else show_latest)
