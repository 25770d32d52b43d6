"""`posthouse queue dead`: the messages of a mesh that nobody could take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.queue.rows import shown_rows
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, QueueRow


def dead(
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="How many at most.")] = 100,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List parked messages of all queues: rejected by their reader, or sent too often without being confirmed.

    They do not block what is behind them. `posthouse queue requeue` lets them wait again, `purge` ends them.

    For example:

        posthouse queue dead
        posthouse queue dead --mesh team --json
    """

    async def work(client: Client) -> list[QueueRow]:
        return await client.queues.rows(mesh, state="parked", limit=limit)

    found = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "rows": found}, shown_rows(found))
