"""`posthouse message`: send to a relay without a daemon, receive, and show the delivery state of a message.

`receive` confirms each message after printing it and rejects messages that cannot be opened. A queue has one reader:
the command is refused while a daemon receives with the same key. The same --id and message is one message, however
often and from wherever it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, MeshOptions, read_text
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.send import NO_FLAGS, MessageFlags, Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.client import Client, Delivery, Mailbox, MessageStates, Sent
    from posthouse.keys import NodeKey


def send(
    to: Annotated[str, Parameter(help="A member's name, a node id, or `#topic`.")],
    body: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    unsealed: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Send a direct message unencrypted.")
    ] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Send a message; returns when the relay has stored it, whether or not the recipient is online.

    A direct message is sealed for its recipient. With --id a retry is safe: the same id and message is one message.

    For example:

        posthouse message send bob "the build is green"
        posthouse message send "#alerts.disk" "92 % full" --mesh team --priority now --json
    """
    text, meta = read_text(body), flags.all_meta()

    async def work(client: Client) -> Sent:
        return await client.send(
            to,
            text,
            client_message_id=flags.client_message_id,
            reply_to=flags.reply_to,
            priority=flags.priority,
            meta=meta,
            mentions=flags.mention,
            is_sealed=not unsealed,
        )

    _show_sent(mesh_options.run(mesh_options.name, work), output)


def _show_sent(sent: Sent, output: Output) -> None:
    value = {
        "id": sent.id,
        "seq": sent.seq,
        "duplicate": sent.duplicate,
        "client_message_id": sent.client_message_id,
        "not_queued": [each._asdict() for each in sent.not_queued],
    }
    state = "already stored" if sent.duplicate else "accepted"
    output.result(value, f"{sent.id}  {state}  seq {sent.seq}")
    for each in sent.not_queued:
        output.note(f"not queued for {each.recipient}: {each.reason}")


def receive(
    *,
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="Stop after this many messages.")] = None,
    window: Annotated[
        int, Parameter(validator=Number(gte=1, lte=1_000), help="Maximum number of unconfirmed messages.")
    ] = 50,
    peek: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Confirm nothing: the messages stay in the queue.")
    ] = False,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show messages as they arrive, oldest first, and confirm each one after it is shown.

    Messages that cannot be opened are rejected. A queue has one reader: while a daemon receives for this key, the
    command is refused.

    For example:

        posthouse message receive
        posthouse message receive --mesh team --count 10 --json
    """
    mesh = mesh_options.name

    async def work(client: Client) -> None:
        async with await client.receive(mesh, window=window) as mailbox:
            shown = 0
            async for delivery in mailbox:
                _show_delivery(mailbox, delivery, output, peek=peek)
                shown += 1
                if shown == count:
                    return

    with mailbox_of(mesh_options.load_key(mesh), mesh):
        mesh_options.run(mesh, work)


@contextmanager
def mailbox_of(key: NodeKey, mesh: str) -> Iterator[None]:
    """Keep the daemon of this home from receiving for a key meanwhile; raises daemon_has_it if it does."""
    from posthouse.client.daemon.locate import daemon_address
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.keys import keyfile
    from posthouse.model.errors import PosthouseError, error

    directory = DaemonDirectory(daemon_address(None, None).directory).mesh(mesh)
    if not directory.key.exists() or keyfile.load(directory.key).node != key.node:
        yield
        return
    try:
        lock = directory.lock()
    except PosthouseError as failure:
        if failure.code != "daemon_running":
            raise
        raise error("daemon_has_it", directory=str(directory.root)) from failure
    try:
        yield
    finally:
        lock.close()


def _show_delivery(mailbox: Mailbox, delivery: Delivery, output: Output, *, peek: bool) -> None:
    from posthouse.cli.output import one_line, short_node
    from posthouse.model.errors import PosthouseError

    value = _delivery_value(delivery)
    where = "" if delivery.topic is None else f"#{delivery.topic} "
    try:
        value["body"] = shown = delivery.body
    except PosthouseError as failure:
        value["error"], shown = failure.code, f"(cannot be opened: {failure})"
    output.result(value, f"{delivery.seq}  {short_node(delivery.sender)}  {one_line(where + shown)}")
    if peek:
        return
    if "error" in value:
        mailbox.reject(delivery, str(value["error"]))
    else:
        mailbox.confirm(delivery)


def _delivery_value(delivery: Delivery) -> dict[str, Any]:
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


def show(
    message_id: Annotated[str, Parameter(name="id", help="Event id of the message.")],
    /,
    *,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Show the delivery state of a message for each recipient, with times.

    The sender sees every recipient, a recipient only itself, an admin of the mesh everything but the content.

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

    from posthouse.cli.output import format_moment
    from posthouse.model.limits import MILLISECOND_NS

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


app = noun("message", "Send messages to a relay without a daemon, receive them, and show their delivery state.")
app.command(send, name="send")
app.command(receive, name="receive")
app.command(show, name="show")
