"""The WebSocket below a connection: handshake, reading messages, pongs, and the end.

Reading uses the HTTP library's parser; writing goes through the outbox, straight to the transport. A frame above the
bound is answered by a NOTICE before the library closes the connection.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Literal

from aiohttp import WSCloseCode, WSMsgType, web

from posthouse.model.errors import error
from posthouse.relay.edge import Edge
from posthouse.relay.stream.connection import CLOSE_S, Connection
from posthouse.relay.stream.frame import pong_frame
from posthouse.relay.stream.outbox import Outbox

_names = itertools.count(1)


class _Socket(web.WebSocketResponse[Literal[False]]):
    """A WebSocket that tells its connection before it is closed for a frame that is too large."""

    connection: Connection | None = None

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and self.connection is not None and not self.closed:
            limit = self.connection.edge.limits.frame_bytes
            self.connection.notice(error("frame_too_large", limit=limit))
            self.connection.end(code, "frame_too_large")
        return await super().close(code=code, message=message, drain=drain)


async def serve_stream(edge: Edge, request: web.BaseRequest) -> web.StreamResponse:
    """Run one connection from the handshake to its end."""
    socket = _Socket(
        timeout=CLOSE_S, autoping=False, compress=False, max_msg_size=edge.limits.frame_bytes, decode_text=False
    )
    try:
        writer = await socket.prepare(request)
    except web.HTTPException as refusal:
        raise error("upgrade_required", reason=(refusal.text or "the handshake is not valid")[:200]) from refusal
    transport = request.transport
    if transport is None:
        return socket
    outbox = Outbox(transport, writer.drain, max_events=edge.limits.buffer_events, max_bytes=edge.limits.buffer_bytes)
    connection = Connection(edge, outbox, f"stream {next(_names)}")
    socket.connection = connection
    edge.connections[connection] = None
    try:
        connection.greet()
        await _read(socket, connection)
    finally:
        del edge.connections[connection]
        await connection.close()
        # the library closes the transport next, which sends what is unsent first: for ever if the peer does not read
        asyncio.get_running_loop().call_later(CLOSE_S, transport.abort)
    return socket


async def _read(socket: _Socket, connection: Connection) -> None:
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
