"""The WebSocket below a connection: handshake, reading messages, pongs, and the end.

Reading uses the HTTP library's parser; writing goes through the outbox, straight to the transport. A frame above the
bound is answered by a NOTICE before the library closes the connection. Frames are taken in the order they came: at once
when this is the only thing the connection waits for, else by its task.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Literal

import structlog
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp._websocket.reader import WebSocketDataQueue

from posthouse.model.errors import error
from posthouse.relay.edge import Edge
from posthouse.relay.stream.connection import CLOSE_S, Connection
from posthouse.relay.stream.frame import pong_frame
from posthouse.relay.stream.outbox import Outbox
from posthouse.relay.stream.queue import FrameQueue

log = structlog.get_logger(__name__)
_names = itertools.count(1)


class _Socket(web.WebSocketResponse[Literal[False]]):
    """A WebSocket that hands frames on at once where it can, and tells its connection of one that is too large."""

    connection: Connection | None = None
    #: None until the handshake
    queue: FrameQueue | None = None

    @property
    def _reader(self) -> WebSocketDataQueue | None:
        return self.queue

    @_reader.setter
    def _reader(self, made: WebSocketDataQueue | None) -> None:
        """Put our queue in the place of the library's, which nobody has used yet."""
        self.queue = None if made is None else FrameQueue.instead_of(made)

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
    queue = socket.queue
    take = partial(_take_at_once, connection, loop)
    while True:
        if queue is not None:
            queue.take = take
        message = await socket.receive()
        if queue is not None:
            queue.take = None
        connection.heard_at = loop.time()
        if message.type is WSMsgType.TEXT and connection.ending is None and not connection.has_room:
            await connection.wait_for_room()
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


def _take_at_once(connection: Connection, loop: asyncio.AbstractEventLoop, data: bytes) -> bool:
    """Take a frame whose bytes have just come, unless the connection ends or has to wait for room first."""
    if connection.ending is not None or not connection.has_room:
        return False
    connection.heard_at = loop.time()
    try:
        connection.take_frame(data)
    except Exception:
        log.exception("frame_failed")
        connection.end(1011, "internal")
        connection.outbox.abort()
    return True
