"""`posthouse queue purge`: take messages out of a queue for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.queue.arguments import MessageIds, Recipient
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client

State = Literal["open", "parked", "queued", "sent", "rejected", "dead"]


def purge(
    recipient: Recipient,
    /,
    *,
    ids: MessageIds = (),
    state: Annotated[State | None, Parameter(help="Messages in this state only; without ids those that are open.")] = (
        None
    ),
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """End messages without delivering them: those named, or all of a queue in a state. It cannot be undone.

    For example:

        posthouse queue purge bob --id 2c5f...e1
        posthouse queue purge bob --mesh team --state parked --json
    """

    async def work(client: Client) -> tuple[str, ...]:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.purge(mesh, node, ids=list(ids) or None, state=state)

    purged = reach.visit(mesh, work)
    output.answer({"mesh": mesh, "purged": purged}, f"{len(purged)} purged")
