"""`posthouse message receive`: the open mailbox of this node, one line per message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach

if TYPE_CHECKING:
    from posthouse.client import Client, Delivery, Mailbox


def receive(
    *,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="End after so many messages.")] = None,
    window: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000), help="Unconfirmed messages at a time.")] = 50,
    peek: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Confirm nothing: what is shown stays in the queue.")
    ] = False,
    mesh: MeshName = "main",
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Open the mailbox and show messages as they come, oldest first; each is confirmed once it was shown.

    What cannot be opened is rejected and said so. The mailbox of a node has one reader: a daemon that uses the same
    key would be replaced by this command, and ends.

    For example:

        posthouse message receive
        posthouse message receive --mesh team --count 10 --json
    """

    async def work(client: Client) -> None:
        async with await client.receive(mesh, window=window) as mailbox:
            shown = 0
            async for delivery in mailbox:
                _show(mailbox, delivery, output, peek=peek)
                shown += 1
                if shown == count:
                    return

    reach.visit(mesh, work)


def _show(mailbox: Mailbox, delivery: Delivery, output: Output, *, peek: bool) -> None:
    from posthouse.cli.message.times import short
    from posthouse.model.errors import PosthouseError

    value = _value(delivery)
    where = "" if delivery.topic is None else f"#{delivery.topic} "
    try:
        value["body"] = shown = delivery.body
    except PosthouseError as failure:
        value["error"], shown = failure.code, f"(cannot be opened: {failure})"
    output.answer(value, f"{delivery.seq}  {short(delivery.sender)}  {where}{shown}")
    if peek:
        return
    if "error" in value:
        mailbox.reject(delivery, str(value["error"]))
    else:
        mailbox.confirm(delivery)


def _value(delivery: Delivery) -> dict[str, Any]:
    message = delivery.message
    return {
        "id": delivery.id,
        "seq": delivery.seq,
        "mesh": delivery.mesh,
        "sender": delivery.sender,
        "topic": delivery.topic,
        "client_message_id": message.client_message_id,
        "reply_to": message.reply_to,
        "priority": message.priority.value,
        "meta": delivery.meta,
        "mentions": message.mentions,
        "was_stored": delivery.was_stored,
        "attempt": delivery.attempt,
    }
