"""`posthouse queue show`: the messages in one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.queue.arguments import Recipient
from posthouse.cli.queue.rows import shown_rows
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, QueueRow

State = Literal["open", "parked", "queued", "sent", "confirmed", "rejected", "dead", "expired", "purged", "blocked"]


def show(
    recipient: Recipient,
    /,
    *,
    state: Annotated[
        State, Parameter(help="Messages in this state; open: queued and sent, parked: rejected and dead.")
    ] = ("open"),
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="How many at most.")] = 100,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """List the messages in the queue of one reader, in their order, without content.

    For example:

        posthouse queue show bob
        posthouse queue show bob --mesh team --state parked --json
    """

    async def work(client: Client) -> list[QueueRow]:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.rows(mesh, node, state=state, limit=limit)

    found = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "rows": found}, shown_rows(found))
