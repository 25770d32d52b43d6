"""`posthouse event query`: stored events that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.event.filters import ANY, Wanted
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client


def query(
    *,
    wanted: Wanted = ANY,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="How many at most.")] = 50,
    order: Annotated[
        Literal["asc", "desc"], Parameter(help="In the order they were stored, or the newest first.")
    ] = "asc",
    cursor: Annotated[str | None, Parameter(help="Go on where a former answer ended.")] = None,
    count: Annotated[bool, Parameter(negative=(), show_default=False, help="Only tell how many match.")] = False,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List stored events in commit order, verified.

    For example:

        posthouse event query --kind 1 --limit 10 --order desc
        posthouse event query --mesh team --author alice --tag t=alerts --json
        posthouse event query --kind 1 --count
    """
    from posthouse.cli.event.shown import event_row, event_value

    async def work(client: Client) -> None:
        authors = [await client.meshes.resolve(author, mesh) for author in wanted.author]
        conditions = wanted.filter(mesh, authors)
        if count:
            number = await client.count(conditions)
            output.answer({"count": number}, str(number))
            return
        page = await client.query(conditions, limit=limit, order=order, cursor=cursor)
        value = {"events": [event_value(client, e.event, e.seq) for e in page.events], "cursor": page.cursor}
        rows = [event_row(client, each.event, each.seq) for each in page.events]
        output.answer(value, table(("seq", "created", "author", "kind", "content"), rows))
        if page.cursor is not None:
            output.note(f"more: --cursor {page.cursor}")

    reach.visit(mesh, work)
