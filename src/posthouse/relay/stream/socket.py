"""One connection of /v1/stream from the handshake to its end: greeting, reading messages, pongs."""

from __future__ import annotations

import asyncio
import itertools

from aiohttp import WSMsgType, web

from posthouse.relay.edge import Edge
from posthouse.relay.stream.connection import Connection
from posthouse.relay.stream.frame import pong_frame
from posthouse.relay.stream.websocket import WebSocket

_names = itertools.count(1)


async def serve_stream(edge: Edge, request: web.BaseRequest) -> web.StreamResponse:
    """Run one connection from the handshake to its end."""
    socket = WebSocket(edge.limits.frame_bytes)
    outbox = await socket.open(request, edge.limits)
    if outbox is None:
        return socket
    connection = Connection(edge, outbox, f"stream {next(_names)}")
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
