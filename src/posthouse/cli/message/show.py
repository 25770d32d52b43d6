"""`posthouse message show`: where a message is, per recipient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client import Client, MessageStates


def show(
    message_id: Annotated[str, Parameter(name="id", help="Id of the message.")],
    /,
    *,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Show how far a message has come: queued, sent, confirmed, rejected, dead, expired or purged, with times.

    Its sender sees every recipient, a recipient itself, an admin of the mesh everything but the content.

    For example:

        posthouse message show 2c5f...e1
        posthouse message show 2c5f...e1 --mesh team --json
    """

    async def work(client: Client) -> MessageStates:
        return await client.message(message_id)

    found = reach.visit(mesh, work)
    output.answer(found, _shown(found))


def _shown(found: MessageStates) -> RenderableType:
    from rich.console import Group

    from posthouse.cli.message.times import moment

    target = f"#{found.destination_ref}" if found.destination_kind == "topic" else found.destination_ref
    head = f"{found.id}\nseq {found.seq}, from {found.sender} to {target}, accepted {moment(found.first_seen_at_ns)}"
    rows = [
        (
            each.recipient,
            each.state,
            each.attempts,
            moment(each.queued_at_ns),
            moment(each.sent_at_ns),
            moment(each.closed_at_ns),
            each.reason or "",
        )
        for each in found.deliveries
    ]
    return Group(head, table(("recipient", "state", "attempts", "queued", "sent", "closed", "reason"), rows))
