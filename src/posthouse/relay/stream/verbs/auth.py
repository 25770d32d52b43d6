"""["AUTH", event]: prove who is at the other end; answered by AUTHED, or by a NOTICE and the end of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.auth.check import prove_challenge_now
from posthouse.relay.stream.verbs.arguments import expect

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

POLICY_VIOLATION = 1008


def auth(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Check a proof for the challenge of this connection's HELLO; commands behind it are already those of the node."""
    expect(arguments, "AUTH", '["AUTH", event]', 1, 1)
    if connection.node is not None:
        raise error("already_authenticated")
    edge = connection.edge
    try:
        node = prove_challenge_now(edge, arguments[0], connection.name)
    except PosthouseError as failure:
        connection.notice(failure)
        connection.end(POLICY_VIOLATION, failure.code)
        return
    connection.node = node
    connection.send("AUTHED", {"node": node, "meshes": edge.core.meshes_of(node)})
