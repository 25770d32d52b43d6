"""["AUTH", event]: prove who is at the other end; answered by AUTHED, or by a NOTICE and the end of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.auth.check import prove_challenge
from posthouse.relay.stream.verbs.arguments import expect

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

POLICY_VIOLATION = 1008


def auth(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Check a proof for the challenge of this connection's HELLO."""
    expect(arguments, "AUTH", '["AUTH", event]', 1, 1)
    if connection.node is not None:
        raise error("already_authenticated")
    connection.start(_authenticate(connection, arguments[0]))


async def _authenticate(connection: Connection, event: bytes) -> None:
    edge = connection.edge
    try:
        node = await prove_challenge(edge, event, connection.name)
    except PosthouseError as failure:
        connection.notice(failure)
        connection.end(POLICY_VIOLATION, failure.code)
        return
    if connection.node is not None:
        connection.notice(error("already_authenticated"))
        return
    connection.node = node
    connection.send("AUTHED", {"node": node, "meshes": edge.core.meshes_of(node)})
