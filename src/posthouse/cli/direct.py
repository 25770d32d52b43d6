"""Read the queue of a node from its relay, without a daemon: `posthouse inbox --direct`.

Each message is confirmed after it is printed; a message that cannot be opened is rejected. A queue has one reader: the
command is refused while a daemon receives with the same key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from posthouse.cli.options import MeshOptions
from posthouse.cli.output import Output, one_line, short_node
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client, Delivery, Mailbox
    from posthouse.keys import NodeKey

#: The group of the options that apply without a daemon.
WITHOUT_DAEMON = Group("Without a daemon", sort_key=5)
_SWITCH = Parameter(negative=(), show_default=False)
_WINDOW = 50
#: The option of commands that can work without a daemon.
Direct = Annotated[bool, _SWITCH, Parameter(group=WITHOUT_DAEMON, help="Connect to the relay, even if a daemon runs.")]


@Parameter(name="*", group=WITHOUT_DAEMON)
@dataclass(frozen=True)
class DirectReading:
    """The options for reading a queue without a daemon."""

    direct: Direct = False
    count: Annotated[int | None, Parameter(validator=Number(gte=1), help="Stop after this many messages.")] = None
    window: Annotated[
        int, Parameter(validator=Number(gte=1, lte=1_000), help="Maximum number of unconfirmed messages.")
    ] = _WINDOW
    peek: Annotated[bool, _SWITCH, Parameter(help="Confirm nothing: the messages stay in the queue.")] = False


#: The default of commands that can read without a daemon.
THROUGH_DAEMON = DirectReading()


def receive(reading: DirectReading, mesh_options: MeshOptions, output: Output) -> None:
    """Show messages as they arrive, oldest first, and confirm each one after it is shown."""
    mesh = mesh_options.name

    async def work(client: Client) -> None:
        async with await client.receive(mesh, window=reading.window) as mailbox:
            shown = 0
            async for delivery in mailbox:
                _show_delivery(mailbox, delivery, output, peek=reading.peek)
                shown += 1
                if shown == reading.count:
                    return

    with _only_reader(mesh_options.load_key(mesh), mesh):
        mesh_options.run(mesh, work)


@contextmanager
def _only_reader(key: NodeKey, mesh: str) -> Iterator[None]:
    """Keep the daemon of this home from receiving for a key until the block ends.

    Raises daemon_has_it if the daemon already receives for it.
    """
    from posthouse.client.daemon.locate import daemon_address
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.keys import keyfile

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
