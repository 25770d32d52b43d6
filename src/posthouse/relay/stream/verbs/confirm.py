"""["CONFIRM", event]: a reader has taken messages; the event of kind 1001 goes the way of every event, and its OK tells
what became of each id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from posthouse.model.errors import error
from posthouse.model.kinds import CONFIRMATION
from posthouse.relay.stream.verbs.arguments import expect

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection


class _Kind(msgspec.Struct):
    kind: int
    id: str


_kind = msgspec.json.Decoder(_Kind).decode


def confirm(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Hand a confirmation to the accept path."""
    expect(arguments, "CONFIRM", '["CONFIRM", event]', 1, 1)
    try:
        given = _kind(arguments[0])
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise error("confirmation_malformed", reason="it is not an event") from fault
    if given.kind != CONFIRMATION:
        refusal = error("confirmation_malformed", reason=f"its kind is {given.kind}, not {CONFIRMATION}")
        connection.send("OK", given.id, False, refusal.problem())
        return
    connection.submit([arguments[0]])
