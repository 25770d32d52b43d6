"""/v1/stream: one connection from the handshake to its end, and the keep-alive of all connections.

One task pings silent connections, instead of a timer each. A peer is gone when it has neither answered a ping in
time nor taken a byte since: a slow reader is alive.
"""

from __future__ import annotations

import asyncio
import itertools

from aiohttp import WSMsgType, web

from posthouse.http.response import HttpResponse
from posthouse.relay.context import Edge
from posthouse.relay.http.router import Access, Call, Route
from posthouse.relay.stream.commands import VERBS
from posthouse.relay.stream.connection import Connection
from posthouse.relay.wire.frames import ping_frame, pong_frame
from posthouse.relay.wire.websocket import WebSocket

_names = itertools.count(1)


async def serve_stream(edge: Edge, request: web.BaseRequest) -> web.StreamResponse:
    """Run one connection from the handshake to its end."""
    socket = WebSocket(edge.limits.frame_bytes)
    outbox = await socket.open(request, edge.limits)
    if outbox is None:
        return socket
    connection = Connection(edge, outbox, f"stream {next(_names)}", VERBS)
    socket.on_too_large = connection.refuse_size
    edge.connections[connection] = None
    try:
        connection.greet()
        await _read(socket, connection)
    finally:
        del edge.connections[connection]
        await connection.close()
        outbox.abort_soon()
    return socket


async def _read(socket: WebSocket, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    while True:
        message = await socket.receive()
        connection.heard_at = loop.time()
        if connection.ending is not None and message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            connection.take_late_frame(message.data)
            continue  # it was told why; only its half of the closing handshake is of interest now
        if message.type is WSMsgType.TEXT:
            connection.take_frame(message.data)
        elif message.type is WSMsgType.PING:
            connection.outbox.write(pong_frame(message.data))
        elif message.type is WSMsgType.BINARY:
            connection.refuse_binary()
        elif message.type is WSMsgType.PONG:
            connection.take_pong(message.data)
        else:
            return
        if connection.ending is None:
            await connection.wait_for_room()


_ROUNDS_PER_PING = 5  # so that a ping is at most a fifth late


async def keep_alive(edge: Edge) -> None:
    """Look after the connections until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(edge.limits.ping_s, edge.limits.pong_s) / _ROUNDS_PER_PING)
        now = loop.time()
        for connection in list(edge.connections):
            check_alive(connection, now)


def check_alive(connection: Connection, now: float) -> None:
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


async def stream(call: Call) -> HttpResponse:
    """Speak the stream protocol until either side ends it."""
    return HttpResponse(101, response=await serve_stream(call.edge, call.request))


STREAM_ROUTES = (
    Route(
        "GET",
        "/v1/stream",
        stream,
        "Open the WebSocket stream",
        Access.ANYBODY,
        answers={101: None},
        media_type="text/plain",
        may_wait=True,
    ),
)
