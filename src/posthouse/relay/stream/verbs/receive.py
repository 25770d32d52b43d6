"""["RECEIVE", mesh, {window, instance}]: open the mailbox of this node; answered by ROSTER, or by a NOTICE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import RECEIVE_WINDOW, RECEIVE_WINDOW_MAX
from posthouse.model.strict_json import parse_json
from posthouse.relay.deliver.mailbox import Mailbox
from posthouse.relay.meshes.rights import Right
from posthouse.relay.stream.frame import ping_frame
from posthouse.relay.stream.verbs.arguments import expect, read_object, reader_of

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

_FORM = '["RECEIVE", mesh, {window, instance}]'
_OPTIONS = frozenset({"window", "instance"})
_INSTANCE_MAX_CHARS = 64


def receive(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Open a mailbox."""
    expect(arguments, "RECEIVE", _FORM, 1, 2)
    node, mesh = reader_of(connection), parse_json(arguments[0])
    if type(mesh) is not str:
        raise error("frame_malformed", reason=f"RECEIVE is {_FORM}")
    options = read_object(arguments[1], _OPTIONS, "RECEIVE") if len(arguments) > 1 else {}
    mailboxes = connection.edge.core.mailboxes
    connection.edge.core.meshes.demand(node, mesh, Right.READ)
    if mesh in connection.mailboxes:
        raise error("mailbox_open", mesh=mesh)
    mailbox = Mailbox(mailboxes, StreamPeer(connection), mesh, node, _window(options), _instance(options))
    connection.mailboxes[mesh] = mailbox
    mailboxes.open(mailbox)
    connection.start(_run(connection, mailbox))


class StreamPeer:
    """A stream connection as deliveries see it."""

    separator = b","

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outbox = connection.outbox

    def deliver(self, text: bytes, count: int) -> None:
        self._outbox.send(text if count == 1 else b"[%b]" % text)

    def tell(self, frame: bytes) -> None:
        self._outbox.write(frame)

    def has_room(self, size: int, count: int) -> bool:
        return self._outbox.has_room(size, count)

    async def drain(self) -> None:
        await self._outbox.drain()

    @property
    def taken_bytes(self) -> int:
        return self._outbox.sent_bytes if self._outbox.unsent_bytes else -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        self._outbox.write(ping_frame(self._connection.expect_pong(on_pong)))

    def end(self, code: int, reason: str) -> None:
        self._connection.end(code, reason)


async def _run(connection: Connection, mailbox: Mailbox) -> None:
    try:
        await mailbox.run()
    except PosthouseError as failure:  # the store cannot be read now: the reader comes again
        connection.notice(failure)
        connection.end(1011, failure.code)


def _window(options: dict[str, Any]) -> int:
    window = options.get("window", RECEIVE_WINDOW)
    if type(window) is not int or not 1 <= window <= RECEIVE_WINDOW_MAX:
        raise error("frame_malformed", reason=f"window is a number from 1 to {RECEIVE_WINDOW_MAX}, or absent")
    return window


def _instance(options: dict[str, Any]) -> str | None:
    instance = options.get("instance")
    if instance is not None and (type(instance) is not str or not 1 <= len(instance) <= _INSTANCE_MAX_CHARS):
        raise error("frame_malformed", reason=f"instance is a text of 1 to {_INSTANCE_MAX_CHARS} characters, or absent")
    return instance
