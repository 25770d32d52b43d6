"""`posthouse queue requeue`: let parked messages wait again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.queue.arguments import MessageIds, Recipient
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, Requeued


def requeue(
    recipient: Recipient,
    /,
    *,
    ids: MessageIds = (),
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Put parked messages at the tail of their queue, with a clean slate: those named, or all of the reader.

    For example:

        posthouse queue requeue bob
        posthouse queue requeue bob --mesh team --id 2c5f...e1 --json
    """

    async def work(client: Client) -> Requeued:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.requeue(mesh, node, ids=list(ids) or None)

    done = reach.visit(mesh, work)
    no_room = f", {len(done.no_room)} found no room" if done.no_room else ""
    output.answer(
        {"mesh": mesh, "requeued": done.requeued, "no_room": done.no_room}, f"{len(done.requeued)} requeued{no_room}"
    )
