"""The WebSocket below a Pinch connection: handshake, login, reading frames, and the end.

A frame above the envelope's bound is read, so that its sender can be told; one above the hard bound closes the
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from posthouse.model.errors import error
from posthouse.model.limits import PINCH_FRAME_MAX_BYTES
from posthouse.relay.edge import Edge
from posthouse.relay.pinch.connection import PinchConnection
from posthouse.relay.pinch.line import POLICY
from posthouse.relay.pinch.login import ALREADY_CONNECTED, AUTHENTICATION_FAILED, Login
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.wire import auth_result
from posthouse.relay.stream.frame import pong_frame
from posthouse.relay.stream.websocket import WebSocket


async def serve_pinch(edge: Edge, pinch: Pinch, request: web.BaseRequest) -> web.StreamResponse:
    """Run one connection from the handshake to its end."""
    if not pinch.settings.origins.allow(request.headers.get("Origin")):
        raise error("pinch_origin_refused", origin=request.headers.get("Origin", "")[:80])
    socket = WebSocket(PINCH_FRAME_MAX_BYTES + 1)
    outbox = await socket.open(request, edge.limits)
    if outbox is None:
        return socket
    connection = PinchConnection(pinch, outbox)
    socket.on_too_large = partial(connection.end, WSCloseCode.MESSAGE_TOO_BIG, "frame too large")
    pinch.connections[connection] = None
    try:
        if await _log_in(socket, connection):
            connection.open_mailbox()
        await _read(socket, connection)
    finally:
        pinch.leave(connection)
        await connection.close()
        outbox.abort_soon()
    return socket


async def _log_in(socket: WebSocket, connection: PinchConnection) -> bool:
    pinch = connection.pinch
    login = Login(pinch.settings, pinch.core.clock)
    connection.send(login.challenge())
    frame = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pinch.settings.challenge_s):
            frame = await _answer(socket, connection)
    address = login.check(frame)
    if address is None:
        pinch.refuse_login()
        _refuse(connection, AUTHENTICATION_FAILED)
        return False
    if not await pinch.admit(connection, address):
        _refuse(connection, ALREADY_CONNECTED)
        return False
    connection.send(auth_result(connection.now_ms, address))
    return True


async def _answer(socket: WebSocket, connection: PinchConnection) -> bytes:
    """Return the first binary frame; anything but control frames before it is no answer."""
    while True:
        message = await socket.receive()
        if not _take_control(connection, message.type, message.data):
            return bytes(message.data) if message.type is WSMsgType.BINARY else b""


def _take_control(connection: PinchConnection, kind: WSMsgType, data: Any) -> bool:
    """Answer a ping or note a pong; return whether it was one."""
    if kind is WSMsgType.PING:
        connection.outbox.write(pong_frame(data))
    elif kind is WSMsgType.PONG:
        connection.take_pong(data)
    return kind in (WSMsgType.PING, WSMsgType.PONG)


def _refuse(connection: PinchConnection, reason: str) -> None:
    connection.send(auth_result(connection.now_ms, "", reason))
    connection.end(POLICY, reason)


async def _read(socket: WebSocket, connection: PinchConnection) -> None:
    """Take frames until the connection has ended; without a login only the closing handshake is of interest."""
    while True:
        message = await socket.receive()
        if _take_control(connection, message.type, message.data):
            pass
        elif message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
            if connection.address and message.type is WSMsgType.BINARY:
                connection.take_frame(message.data)
            elif connection.address:
                connection.fault()
        else:
            return
        if connection.ending is None:
            await connection.wait_for_room()
