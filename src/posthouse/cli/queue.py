"""`posthouse queue`: the queues of a mesh, for its admins: list, show, dead letters, purge, requeue.

Message content is never shown. Parked messages (rejected or dead) do not block the messages behind them; `requeue`
puts them at the tail and counts their attempts from zero, `purge` removes them permanently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.completers import complete_members
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions
from posthouse.cli.output import PLAIN, Output, format_moment, short_node, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client import Client, Queue, QueueRow, Requeued


#: The owner of the queue, as the first argument.
Recipient = Annotated[
    str,
    Parameter(completer=complete_members, help="The recipient: a member's name, a node id, or a Pinch address."),
]
#: Messages of a queue, by id.
MessageIds = Annotated[
    tuple[str, ...],
    Parameter(name="--id", negative=(), show_default=False, help="Only the message with this id. Repeatable."),
]
_COLUMNS = ("recipient", "id", "sender", "state", "attempts", "queued", "closed", "reason")


def shown_rows(rows: Sequence[QueueRow]) -> RenderableType:
    """Return the messages of queues as a table."""
    return table(
        _COLUMNS,
        [
            (
                short_node(row.recipient),
                row.id,
                short_node(row.sender),
                row.state,
                row.attempts,
                format_moment(row.queued_at_ns),
                format_moment(row.closed_at_ns),
                row.reason or "",
            )
            for row in rows
        ],
    )


def ls(*, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """List queues with the number of waiting and parked messages and the age of the oldest.

    For example:

        posthouse queue ls
        posthouse queue ls --mesh team --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> list[Queue]:
        return await client.queues.all(mesh)

    found = mesh_options.run(mesh, work)
    rows = [
        (each.recipient, each.depth, each.parked, each.confirmations, format_moment(each.oldest_ns)) for each in found
    ]
    columns = ("recipient", "waiting", "parked", "confirmations", "oldest")
    output.result({"mesh": mesh, "queues": found}, table(columns, rows))


ShownState = Literal[
    "open", "parked", "queued", "sent", "confirmed", "rejected", "dead", "expired", "purged", "blocked"
]


def show(
    recipient: Recipient,
    /,
    *,
    state: Annotated[
        ShownState, Parameter(help="Only messages in this state; open is queued and sent, parked is rejected and dead.")
    ] = ("open"),
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="Maximum number to show.")] = 100,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """List the messages in one recipient's queue, in order, without content.

    For example:

        posthouse queue show bob
        posthouse queue show bob --mesh team --state parked --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> list[QueueRow]:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.rows(mesh, node, state=state, limit=limit)

    found = mesh_options.run(mesh, work)
    output.result({"mesh": mesh, "rows": found}, shown_rows(found))


def dead(
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="Maximum number to show.")] = 100,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """List the parked messages of all queues: rejected by the recipient, or out of delivery attempts.

    Parked messages do not block the queue. `posthouse queue requeue` delivers them again, `purge` removes them.

    For example:

        posthouse queue dead
        posthouse queue dead --mesh team --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> list[QueueRow]:
        return await client.queues.rows(mesh, state="parked", limit=limit)

    found = mesh_options.run(mesh, work)
    output.result({"mesh": mesh, "rows": found}, shown_rows(found))


PurgedState = Literal["open", "parked", "queued", "sent", "rejected", "dead"]


def purge(
    recipient: Recipient,
    /,
    *,
    ids: MessageIds = (),
    state: Annotated[PurgedState | None, Parameter(help="Only messages in this state. Default without --id: open.")] = (
        None
    ),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Remove messages without delivering them, by id or by state. This cannot be undone.

    For example:

        posthouse queue purge bob --id 2c5f...e1
        posthouse queue purge bob --mesh team --state parked --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> tuple[str, ...]:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.purge(mesh, node, ids=list(ids) or None, state=state)

    purged = mesh_options.run(mesh, work)
    output.result({"mesh": mesh, "purged": purged}, f"{len(purged)} purged")


def requeue(
    recipient: Recipient,
    /,
    *,
    ids: MessageIds = (),
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Put parked messages, by id or all of them, back at the tail of the queue; attempts count from zero again.

    For example:

        posthouse queue requeue bob
        posthouse queue requeue bob --mesh team --id 2c5f...e1 --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> Requeued:
        node = await client.meshes.resolve(recipient, mesh)
        return await client.queues.requeue(mesh, node, ids=list(ids) or None)

    done = mesh_options.run(mesh, work)
    no_room = f", {len(done.no_room)} not requeued: the queue is full" if done.no_room else ""
    output.result(
        {"mesh": mesh, "requeued": done.requeued, "no_room": done.no_room}, f"{len(done.requeued)} requeued{no_room}"
    )


app = noun("queue", "Inspect and repair the queues of a mesh, for its admins.")
app.command(ls, name="ls")
app.command(show, name="show")
app.command(dead, name="dead")
app.command(purge, name="purge")
app.command(requeue, name="requeue")
