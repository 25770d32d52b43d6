"""`posthouse event tail`: follow events as they are stored, over relay restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.event.filters import ANY, Wanted
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def tail(
    *,
    wanted: Wanted = ANY,
    limit: Annotated[
        int, Parameter(validator=Number(gte=0, lte=500), help="Begin with so many of the newest stored events.")
    ] = 10,
    cursor: Annotated[str | None, Parameter(help="Begin behind this place instead, without a gap.")] = None,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="End after so many events.")] = None,
    stored: Annotated[
        bool, Parameter(negative=(), show_default=False, help="End when everything stored has been shown.")
    ] = False,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show stored events, then live ones, until Ctrl-C; reconnects by itself, without a gap or a duplicate.

    With --json each line carries the cursor to go on from.

    For example:

        posthouse event tail --kind 1
        posthouse event tail --mesh team --tag t=alerts --limit 0 --json
        posthouse event tail --cursor "$CURSOR" --stored --json
    """
    from posthouse.cli.event.shown import event_row, event_value

    async def work(client: Client) -> None:
        authors = [await client.meshes.resolve(author, mesh) for author in wanted.author]
        begin = None if cursor is not None else limit
        subscription = await client.subscribe(wanted.filter(mesh, authors), cursor=cursor, limit=begin)
        shown = 0
        async for received in subscription.stored() if stored else subscription:
            event, seq = received.event, received.seq
            row = "  ".join(event_row(client, event, seq))
            output.answer(event_value(client, event, seq, cursor=subscription.cursor), row)
            shown += 1
            if shown == count:
                return

    reach.visit(mesh, work)
