"""/ws, /health, /agents/register and /claim: the Pinch routes, the login, and which address is connected.

A login nonce is valid once and for a few seconds, and the signature covers the relay's name. A failed login gets no
reason. An address has one connection: a second login wins only if the first connection fails to answer a ping, so an
agent that lost its network can return at once, and a copy of an agent cannot take over from the one that runs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from msgspec import Meta

from posthouse.http.outbound import OutboundAccount
from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.keys import public_key, verify
from posthouse.keys.identity import same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, PINCH_FRAME_MAX_BYTES
from posthouse.model.node import node_from_key
from posthouse.model.pinch import address_of, auth_bytes, parse_address
from posthouse.relay.context import RelayCall, RelayContext
from posthouse.relay.pinch.agent_connection import REPLACED, PinchConnection
from posthouse.relay.pinch.envelopes import AUTH_RESPONSE, VERSION, auth_challenge, auth_result, decode_envelope
from posthouse.relay.pinch.pinch_settings import PinchSettings
from posthouse.relay.pinch.schema.pinch_pb2 import AuthResponse
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.wire.edge_limits import EdgeLimits
from posthouse.relay.wire.websocket import POLICY_VIOLATION, keep_alive, serve_websocket

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
        """Return the address of the key that answered the challenge, or None if the answer is not valid."""
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


class PinchEndpoint:
    """All Pinch connections of a relay, and the connection of each address."""

    def __init__(self, pinch: Pinch) -> None:
        self.pinch = pinch
        #: every connection, including those that have not logged in
        self.connections: dict[PinchConnection, None] = {}
        self._by_address: dict[str, PinchConnection] = {}
        #: one login at a time per address
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unwatch_rights = pinch.engine.meshes.watch_rights(self._end_retired)
        keep = keep_alive(self.connections, pinch.settings.ping_s, pinch.settings.pong_s)
        self._keep_alive = asyncio.get_running_loop().create_task(keep, name="keep Pinch connections alive")

    @property
    def logged_in(self) -> int:
        """How many addresses are connected."""
        return len(self._by_address)

    def routes(self) -> tuple[Route[RelayCall], ...]:
        """Return the routes of a relay that speaks Pinch."""
        return _routes(self)

    async def serve(
        self, limits: EdgeLimits, outbound: OutboundAccount, request: BaseRequest, address: str | None
    ) -> StreamResponse:
        """Run one connection from the handshake to its end."""
        return await serve_websocket(
            request,
            limits,
            PINCH_FRAME_MAX_BYTES + 1,
            self.connections,
            outbound,
            lambda socket, write_buffer: PinchConnection(self.pinch, socket, write_buffer, self._log_in, self._leave),
            address,
        )

    def check_alive(self) -> None:
        """Send the pings that are due and end connections that did not answer the last one."""
        for connection in list(self.connections):
            connection.check_alive()

    async def close(self) -> None:
        """Stop pinging and commit pending submissions; call it after the connections and before the store."""
        self._unwatch_rights()
        self._keep_alive.cancel()
        await asyncio.gather(self._keep_alive, return_exceptions=True)
        await self.pinch.close()

    async def _log_in(self, connection: PinchConnection) -> bool:
        """Challenge the agent and give the connection its address; return False if the login is refused."""
        pinch = self.pinch
        login = Login(pinch.settings, pinch.engine.clock)
        connection.send(login.challenge())
        frame = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pinch.settings.challenge_s):
                frame = await connection.next_frame()
        address = None if frame is None or frame.is_text else login.check(frame.data)
        if address is None or self._key_error(address) is not None:
            pinch.meters.count("posthouse_relay_pinch_logins_total", "failed")
            _refuse_login(connection, AUTHENTICATION_FAILED)
            return False
        if (no_room := connection.accept_guest()) is not None:
            pinch.meters.count("posthouse_relay_pinch_logins_total", "no_room")
            _refuse_login(connection, str(no_room))
            return False
        if not await self._admit(connection, address):
            pinch.meters.count("posthouse_relay_pinch_logins_total", "already_connected")
            _refuse_login(connection, ALREADY_CONNECTED)
            return False
        pinch.meters.count("posthouse_relay_pinch_logins_total", "accepted")
        connection.send(auth_result(connection.now_ms, address))
        return True

    def _key_error(self, address: str) -> PosthouseError | None:
        """Return why the key of an address may not be used any more, or None."""
        return self.pinch.engine.meshes.key_error(node_from_key(parse_address(address).key))

    def _end_retired(self, _mesh: str) -> None:
        for address, connection in list(self._by_address.items()):
            if (retired := self._key_error(address)) is not None:
                connection.end(POLICY_VIOLATION, retired.code)

    async def _admit(self, connection: PinchConnection, address: str) -> bool:
        """Give an address to a connection, unless another connection of that address answers a ping."""
        gate = self._gates.get(address)
        if gate is None:
            gate = self._gates[address] = asyncio.Lock()
        async with gate:
            present = self._by_address.get(address)
            if present is not None and present.is_closing:
                # bounded: otherwise this login would get envelopes that the old connection is still reading
                await present.ended.wait()
                present = None
            if present is not None and await present.answers_ping():
                return False
            if present is not None:
                present.end(POLICY_VIOLATION, REPLACED)
                present.close_session()
            connection.address = address
            self._by_address[address] = connection
            return True

    def _leave(self, connection: PinchConnection) -> None:
        if self._by_address.get(connection.address) is connection:
            del self._by_address[connection.address]


def _refuse_login(connection: PinchConnection, reason: str) -> None:
    connection.send(auth_result(connection.now_ms, "", reason))
    connection.end(POLICY_VIOLATION, reason)


class PinchHealth(msgspec.Struct):
    """The state of the Pinch endpoint."""

    status: str
    #: agents that are logged in
    connections: int
    relay_host: str


class Registration(msgspec.Struct):
    """An agent's public key, as standard base64."""

    public_key: Annotated[str, Meta(max_length=128)]


class Registered(msgspec.Struct):
    """The address of a key at this relay, and its claim code."""

    address: str
    claim_code: str


def open_pinch(context: RelayContext, settings: PinchSettings) -> PinchEndpoint:
    """Return the endpoint of a relay that speaks Pinch."""
    return PinchEndpoint(Pinch(context.engine, context.key, context.meters, settings))


def _routes(endpoint: PinchEndpoint) -> tuple[Route[RelayCall], ...]:
    """Return the routes of a relay that speaks Pinch."""
    pinch = endpoint.pinch

    async def ws(call: RelayCall) -> HttpResponse:
        """Serve a Pinch connection until either side ends it."""
        context = call.context
        served = await endpoint.serve(context.limits, context.outbound, call.request, call.address)
        return HttpResponse(101, response=served)

    async def health(_call: RelayCall) -> HttpResponse:
        """Return the state of the store and the number of connected agents."""
        return json_response(PinchHealth(_health_state(pinch), endpoint.logged_in, pinch.settings.host))

    async def register(call: RelayCall) -> HttpResponse:
        """Return the address of a key; any key may be registered."""
        key = _read_key((await call.body(Registration)).public_key)
        return json_response(Registered(address_of(key, pinch.settings.host), pinch.claim_code(key)))

    async def claim(_call: RelayCall) -> HttpResponse:
        """Answer that keys need no approval here."""
        raise error("pinch_claim_needless")

    return (
        Route("GET", "/claim", claim, "Learn that Pinch keys need no approval", is_public=True, responses={404: None}),
        Route(
            "POST",
            "/agents/claim",
            claim,
            "Learn that a Pinch key needs no claim",
            is_public=True,
            responses={404: None},
        ),
        Route("GET", "/ws", ws, "Open a Pinch connection", is_public=True, responses={101: None}, may_wait=True),
        Route(
            "GET",
            "/health",
            health,
            "Read the state of the Pinch endpoint",
            is_public=True,
            is_vital=True,
            responses={200: PinchHealth},
        ),
        Route(
            "POST",
            "/agents/register",
            register,
            "Get the Pinch address of a key",
            is_public=True,
            bodies=(Registration,),
            responses={200: Registered},
        ),
    )


def _health_state(pinch: Pinch) -> str:
    """Return `ok`, or the state in which the store accepts no envelopes."""
    state = pinch.engine.state
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
