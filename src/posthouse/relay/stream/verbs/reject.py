"""["REJECT", id, reason]: park a message that this reader cannot take; answered by OK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event_structure import is_event_id
from posthouse.model.strict_json import parse_json
from posthouse.relay.stream.verbs.arguments import expect, reader_of

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

_FORM = '["REJECT", id, reason]'
_REASON_MAX_CHARS = 500


def reject(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Reject one message."""
    expect(arguments, "REJECT", _FORM, 2, 2)
    node = reader_of(connection)
    message_id, reason = parse_json(arguments[0]), parse_json(arguments[1])
    if type(message_id) is not str or not is_event_id(message_id):
        raise error("frame_malformed", reason=f"REJECT is {_FORM}")
    if type(reason) is not str or not 1 <= len(reason) <= _REASON_MAX_CHARS:
        raise error("frame_malformed", reason=f"a reason is a text of 1 to {_REASON_MAX_CHARS} characters")
    connection.start(_reject(connection, node, message_id, reason))


async def _reject(connection: Connection, node: str, message_id: str, reason: str) -> None:
    try:
        await connection.edge.core.queues.reject(node, message_id, reason)
    except PosthouseError as failure:
        connection.send("OK", message_id, False, failure.problem())
        return
    connection.send("OK", message_id, True, {"id": message_id, "state": "rejected"})
