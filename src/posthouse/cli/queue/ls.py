"""`posthouse queue ls`: the queues of a mesh in which something is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.message.times import moment
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, Queue


def ls(*, mesh: MeshName = "main", reach: Reach = DEFAULT_REACH, output: Output = PLAIN) -> None:
    """List queues: how many messages wait, how many are parked, and since when the oldest waits.

    For example:

        posthouse queue ls
        posthouse queue ls --mesh team --json
    """

    async def work(client: Client) -> list[Queue]:
        return await client.queues.all(mesh)

    found = reach.visit(mesh, work)
    rows = [(each.recipient, each.depth, each.parked, each.confirmations, moment(each.oldest_ns)) for each in found]
    columns = ("recipient", "waiting", "parked", "confirmations", "oldest")
    output.answer({"mesh": mesh, "queues": found}, table(columns, rows))
