"""`posthouse message show`: the delivery state of a message at the relay.

`message send` and `message receive` are the former names of `send --direct` and `inbox --direct`, hidden until 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.commands import note_new_name, noun
from posthouse.cli.direct import THROUGH_DAEMON, DirectReading, receive
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions
from posthouse.cli.output import PLAIN, Output, format_moment, table
from posthouse.cli.send import NO_FLAGS, MessageFlags, Text, Unsealed, read_message, send_direct
from posthouse.model.limits import MILLISECOND_NS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client import Client, MessageStates


def show(
    message_id: Annotated[str, Parameter(name="id", help="Event id of the message.")],
    /,
    *,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show the delivery state of a message for each recipient, with times.

    The sender and admins of the mesh see every recipient; a recipient sees only itself. Content is never shown.

    For example:

        posthouse message show 2c5f...e1
        posthouse message show 2c5f...e1 --mesh team --json
    """

    async def work(client: Client) -> MessageStates:
        return await client.message(message_id)

    found = mesh_options.run(mesh_options.name, work)
    output.result(found, _states_table(found))


def _states_table(found: MessageStates) -> RenderableType:
    from rich.console import Group

    target = f"#{found.destination_ref}" if found.destination_kind == "topic" else found.destination_ref
    accepted = format_moment(found.first_seen_at_ns)
    head = f"{found.id}\nseq {found.seq}, from {found.sender} to {target}, accepted {accepted}"
    rows = [
        (
            each.recipient,
            each.receipt or each.state,
            each.attempts,
            format_moment(each.queued_at_ns),
            format_moment(each.sent_at_ns),
            format_moment(each.closed_at_ns),
            format_moment(None if each.receipt_at_ms is None else each.receipt_at_ms * MILLISECOND_NS),
            each.receipt_reason or each.reason or "",
        )
        for each in found.deliveries
    ]
    return Group(head, table(("recipient", "state", "attempts", "queued", "sent", "closed", "receipt", "reason"), rows))


def former_send(
    to: str,
    body: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    unsealed: Unsealed = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Send without a daemon: the former name of `posthouse send --direct`."""
    note_new_name("message send", "send --direct", output)
    send_direct(to, read_message(body), flags, mesh_options, output, is_sealed=not unsealed)


def former_receive(
    *,
    reading: DirectReading = THROUGH_DAEMON,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Receive without a daemon: the former name of `posthouse inbox --direct`."""
    note_new_name("message receive", "inbox --direct", output)
    receive(reading, mesh_options, output)


app = noun("message", "Show the delivery state of a message at the relay.")
app.command(show, name="show")
app.command(former_send, name="send", show=False)
app.command(former_receive, name="receive", show=False)
