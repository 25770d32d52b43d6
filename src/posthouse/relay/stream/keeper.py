"""The keeper of connections: pings who is silent and drops who is gone.

One task looks at all connections, instead of a timer each. A peer is gone when a ping was not answered in time and it
has not taken a byte since either: who merely reads slowly is alive.
"""

from __future__ import annotations

import asyncio

from posthouse.relay.edge import Edge
from posthouse.relay.stream.connection import Connection
from posthouse.relay.stream.frame import ping_frame

_ROUNDS_PER_PING = 5  # so that a ping is at most a fifth late


async def keep_alive(edge: Edge) -> None:
    """Look after the connections until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(edge.limits.ping_s, edge.limits.pong_s) / _ROUNDS_PER_PING)
        now = loop.time()
        for connection in list(edge.connections):
            attend(connection, now)


def attend(connection: Connection, now: float) -> None:
    """Ping a connection that is silent, or drop it when it stays so."""
    limits = connection.edge.limits
    if connection.is_held_back:  # it is the relay that does not listen: what the peer says stays unread
        connection.heard_at = now
    pinged_at = connection.pinged_at
    if pinged_at is not None and connection.heard_at > pinged_at:
        connection.pinged_at = pinged_at = None
    if pinged_at is None:
        if now - connection.heard_at >= limits.ping_s:
            connection.outbox.write(ping_frame(b""))
            connection.pinged_at, connection.sent_at_ping = now, connection.outbox.sent_bytes
    elif now - pinged_at >= limits.pong_s:
        sent = connection.outbox.sent_bytes
        if sent > connection.sent_at_ping and connection.outbox.unsent_bytes:
            connection.pinged_at, connection.sent_at_ping = now, sent
            return
        connection.edge.meters.count("posthouse_relay_streams_closed_total", "dead")
        connection.outbox.abort()
