"""/ws, /health and /agents/register: the Pinch routes, the handshake, the login and the reading of frames.

The nonce of a login is used once and for a few seconds, and the relay's name is part of what is signed. Why a login
failed is not told. A frame above the envelope's bound is read, so that its sender can be told; one above the hard
bound closes the connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
from functools import partial
from typing import Annotated, Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.keys import public_key, verify
from posthouse.keys.identity import same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, PINCH_FRAME_MAX_BYTES
from posthouse.model.node import node_from_key
from posthouse.model.pinch import address_of, auth_bytes
from posthouse.relay.context import Edge
from posthouse.relay.http.router import Access, Call, Route
from posthouse.relay.pinch.connection import PinchConnection
from posthouse.relay.pinch.envelopes import AUTH_RESPONSE, VERSION, auth_challenge, auth_result, decode_envelope
from posthouse.relay.pinch.line import POLICY
from posthouse.relay.pinch.schema.pinch_pb2 import AuthResponse
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.wire.frames import pong_frame
from posthouse.relay.wire.websocket import WebSocket

AUTHENTICATION_FAILED = "authentication failed"
ALREADY_CONNECTED = "address already connected"
_NONCE_BYTES = 32
_SIGNATURE_BYTES = 64


class Login:
    """One challenge and its answer."""

    def __init__(self, settings: PinchSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._issued_ns = clock.boot_ns()

    def challenge(self) -> bytes:
        """Return the envelope that opens the connection."""
        issued_at_ms = self._clock.wall_ns() // MILLISECOND_NS
        expires_at_ms = issued_at_ms + round(self._settings.challenge_s * 1_000)
        return auth_challenge(self._nonce, issued_at_ms, expires_at_ms, self._settings.host)

    def check(self, frame: bytes) -> str | None:
        """Return the address whose key answered the challenge, or None when it did not."""
        envelope = decode_envelope(frame)
        if envelope is None or envelope.type != AUTH_RESPONSE or not envelope.HasField("auth_response"):
            return None
        if self._clock.boot_ns() - self._issued_ns > self._settings.challenge_s * 1e9:
            return None
        response = envelope.auth_response
        return address_of(response.public_key, self._settings.host) if self._is_proved(response) else None

    def _is_proved(self, response: AuthResponse) -> bool:
        if response.version != VERSION or len(response.signature) != _SIGNATURE_BYTES:
            return False
        if not same_token(response.nonce.hex(), self._nonce.hex()):
            return False
        try:
            node = node_from_key(response.public_key)
            verify(node, auth_bytes(self._settings.host, self._nonce), response.signature.hex())
        except PosthouseError:
            return False
        return True


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
        await _read_frames(socket, connection)
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
            frame = await _read_response(socket, connection)
    address = login.check(frame)
    if address is None:
        pinch.refuse_login()
        _refuse_login(connection, AUTHENTICATION_FAILED)
        return False
    if not await pinch.admit(connection, address):
        _refuse_login(connection, ALREADY_CONNECTED)
        return False
    connection.send(auth_result(connection.now_ms, address))
    return True


async def _read_response(socket: WebSocket, connection: PinchConnection) -> bytes:
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


def _refuse_login(connection: PinchConnection, reason: str) -> None:
    connection.send(auth_result(connection.now_ms, "", reason))
    connection.end(POLICY, reason)


async def _read_frames(socket: WebSocket, connection: PinchConnection) -> None:
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


class PinchHealth(msgspec.Struct):
    """How the wire is doing."""

    status: str
    #: agents that are logged in
    connections: int
    relay_host: str


class Registration(msgspec.Struct):
    """An agent's public key, as standard base64."""

    public_key: Annotated[str, Meta(max_length=128)]


class Registered(msgspec.Struct):
    """The address of a key at this relay, and the code that goes with it."""

    address: str
    claim_code: str


def pinch_routes(pinch: Pinch) -> tuple[Route, ...]:
    """Return the routes of a relay that speaks Pinch."""

    async def ws(call: Call) -> HttpResponse:
        """Speak the Pinch wire until either side ends it."""
        return HttpResponse(101, response=await serve_pinch(call.edge, pinch, call.request))

    async def health(_call: Call) -> HttpResponse:
        """Tell how many agents are connected."""
        return json_response(PinchHealth(_health_state(pinch), len(pinch), pinch.settings.host))

    async def register(call: Call) -> HttpResponse:
        """Return the address of a key; any key may be registered."""
        key = _read_key((await call.body(Registration)).public_key)
        return json_response(Registered(address_of(key, pinch.settings.host), pinch.claim_code(key)))

    return (
        Route("GET", "/ws", ws, "Open the Pinch wire", Access.ANYBODY, answers={101: None}, may_wait=True),
        Route("GET", "/health", health, "Tell how the Pinch wire is doing", Access.ANYBODY, answers={200: PinchHealth}),
        Route(
            "POST",
            "/agents/register",
            register,
            "Get the Pinch address of a key",
            Access.ANYBODY,
            bodies=(Registration,),
            answers={200: Registered},
        ),
    )


def _health_state(pinch: Pinch) -> str:
    """Return `ok`, or what keeps the store from taking envelopes."""
    state = pinch.core.state
    return "ok" if state == "open" else state


def _read_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise error("pinch_key_invalid", reason="it is not standard base64") from fault
    try:
        return public_key(node_from_key(key))
    except PosthouseError as fault:
        raise error("pinch_key_invalid", reason=str(fault.fields.get("reason", fault))) from fault
