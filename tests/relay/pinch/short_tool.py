"""A Pinch agent made of short command-line tools, played byte by byte on a raw socket.

Each call is a process of its own: it logs in, acts and closes with 1000 in the tick in which it took AUTH_RESULT. Like
the WebSocket library of the skill, it still handles envelopes while it closes, but answers no ping and can send
nothing: a message that comes then is stored and the confirm fails. A message id that is stored already is fatal. What
the files of the agent hold survives each call.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

from examples.pinch_agent.agent import CONFIRM, MESSAGE, Agent
from examples.pinch_agent.pinch_pb2 import ConnectionRequest, ConnectionResponse, Envelope, MessageType
from tests.relay.edge import PATIENCE_S

REQUEST = MessageType.MESSAGE_TYPE_CONNECTION_REQUEST
RESPONSE = MessageType.MESSAGE_TYPE_CONNECTION_RESPONSE
REVOKE = MessageType.MESSAGE_TYPE_CONNECTION_REVOKE
STATUS = MessageType.MESSAGE_TYPE_QUEUE_STATUS
_STATUS_S = 2  # the tool waits as long for QUEUE_STATUS
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_NORMAL = struct.pack("!H", 1000)


class Crashed(Exception):
    """The process ended with an error, as after an unhandled rejection."""


class ToolAgent:
    """The files of an agent, and the tools that work on them."""

    def __init__(self, url: str, host: str) -> None:
        self.url = url
        self.agent = Agent(host)
        #: state of each connection by address
        self.contacts: dict[str, str] = {}
        #: stored messages by id, in the order they were stored
        self.stored: dict[bytes, Envelope] = {}
        #: ids of own messages that were confirmed
        self.confirmed: set[bytes] = set()
        #: messages that came before their sender was an active contact
        self.unknown_senders: list[bytes] = []

    @property
    def address(self) -> str:
        return self.agent.address

    async def list_contacts(self) -> dict[str, str]:
        """Return the contacts as the tool prints them: as they are when AUTH_RESULT was read."""
        printed: dict[str, str] = {}
        await self.run(lambda _call: printed.update(self.contacts))
        return printed

    async def connect_to(self, other: str) -> None:
        """Ask another agent for a connection."""

        def act(call: ToolCall) -> None:
            envelope = self.agent._envelope(other, REQUEST)
            asked = ConnectionRequest(from_address=self.address, to_address=other, message="hello")
            envelope.connection_request.CopyFrom(asked)
            call.send(envelope)
            self.contacts[other] = "pending_outbound"

        await self.run(act)

    async def accept(self, other: str) -> None:
        """Accept the request of another agent."""

        def act(call: ToolCall) -> None:
            if self.contacts.get(other) != "pending_inbound":
                raise Crashed(f"cannot approve a connection in state {self.contacts.get(other)}")
            envelope = self.agent._envelope(other, RESPONSE)
            answer = ConnectionResponse(from_address=self.address, to_address=other, accepted=True)
            envelope.connection_response.CopyFrom(answer)
            call.send(envelope)
            self.contacts[other] = "active"

        await self.run(act)

    async def send(self, other: str, text: str) -> bytes:
        """Send a message to an active contact and return its id."""
        envelope = self.agent.compose(other, text)

        def act(call: ToolCall) -> None:
            if self.contacts.get(other) != "active":
                raise Crashed("the connection is not active")
            call.send(envelope)

        await self.run(act)
        return envelope.message_id

    async def history(self) -> list[bytes]:
        """Wait for the backlog as QUEUE_STATUS announces it, then return the ids of stored messages."""
        await self.run(lambda _call: None, waits_for_backlog=True)
        return list(self.stored)

    async def run(self, act: Callable[[ToolCall], None], *, waits_for_backlog: bool = False) -> None:
        """Run one tool from its start to its end; raise Crashed if it ends with an error."""
        async with asyncio.timeout(PATIENCE_S):
            await ToolCall(self, act, waits_for_backlog).run()


class ToolCall:
    """One process: a socket, and the library's state."""

    def __init__(self, owner: ToolAgent, act: Callable[[ToolCall], None], waits_for_backlog: bool) -> None:
        self._owner = owner
        self._act = act
        self._waits_for_backlog = waits_for_backlog
        self._buffer = b""
        self._is_authenticated = False
        self._has_acted = False
        self._is_closing = False
        self._is_closed = False
        #: envelopes of the backlog that have not come; None before QUEUE_STATUS
        self.left: int | None = None
        self._crash: Crashed | None = None
        self._out = b""

    async def run(self) -> None:
        """Connect, then handle one chunk of the socket after the other; a tick ends where a chunk does."""
        place = urlsplit(self._owner.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            await self._shake_hands(reader, writer, place.netloc)
            while not self._is_closed:
                for opcode, payload in self._frames():
                    self._take(opcode, payload)
                self._end_tick()
                writer.write(self._out)
                self._out = b""
                if self._crash is not None:
                    writer.transport.abort()
                    raise self._crash
                if not self._is_closed:
                    self._buffer += await self._read(reader)
            writer.write_eof()
            await reader.read()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        waits_for_status = self._waits_for_backlog and self._has_acted and self.left is None
        try:
            async with asyncio.timeout(_STATUS_S if waits_for_status else None):
                chunk = await reader.read(65_536)
        except TimeoutError:
            self.left = 0
            return b""
        if not chunk:
            raise Crashed("the relay closed without a close frame")
        return chunk

    def send(self, envelope: Envelope) -> None:
        """Send an envelope; a library that is closing refuses."""
        if self._is_closing:
            raise Crashed("not connected")
        self._write(_BINARY, envelope.SerializeToString())

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ("GET /ws HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade")
        writer.write("\r\n".join((*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head.splitlines()[0], head

    def _frames(self) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(self._buffer) >= 2:
            size, start = self._buffer[1], 2
            if size >= 126:
                width = 2 if size == 126 else 8
                start += width
                if len(self._buffer) < start:
                    break
                size = int.from_bytes(self._buffer[2:start], "big")
            if len(self._buffer) < start + size:
                break
            found.append((self._buffer[0] & 15, self._buffer[start : start + size]))
            self._buffer = self._buffer[start + size :]
        return found

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _BINARY:
            self._take_envelope(Envelope.FromString(payload))
        elif opcode == _PING and not self._is_closing:
            self._write(_PONG, payload)
        elif opcode == _CLOSE:
            self._close()
            self._is_closed = True

    def _take_envelope(self, envelope: Envelope) -> None:
        if envelope.HasField("auth_challenge"):
            given = envelope.auth_challenge
            self._write(_BINARY, self._owner.agent.answer(given.nonce, given.relay_host).SerializeToString())
        elif envelope.HasField("auth_result"):
            assert envelope.auth_result.success, envelope.auth_result.error_message
            self._is_authenticated = True
        else:
            if self.left:
                self.left -= 1
            self._handle(envelope)

    def _handle(self, envelope: Envelope) -> None:
        owner, sender = self._owner, envelope.from_address
        if envelope.type == REQUEST:
            owner.contacts[sender] = "pending_inbound"
        elif envelope.type == RESPONSE:
            owner.contacts[sender] = "active"
        elif envelope.type == REVOKE:
            owner.contacts[sender] = "revoked"
        elif envelope.type == STATUS:
            self.left = envelope.queue_status.pending_count
        elif envelope.type == CONFIRM:
            owner.confirmed.add(envelope.delivery_confirm.message_id)
        elif envelope.type == MESSAGE:
            self._store(envelope)

    def _store(self, envelope: Envelope) -> None:
        owner = self._owner
        if envelope.message_id in owner.stored:
            self._crash = Crashed("UNIQUE constraint failed: messages.id")
            return
        owner.stored[envelope.message_id] = envelope
        if owner.contacts.get(envelope.from_address) != "active":
            owner.unknown_senders.append(envelope.message_id)
        try:
            self.send(owner.agent.confirmation(envelope))
        except Crashed as crash:
            self._crash = crash

    def _end_tick(self) -> None:
        """Do what the promise of connect() resolves to, after all frames of the chunk."""
        if self._is_authenticated and not self._has_acted:
            self._has_acted = True
            try:
                self._act(self)
            except Crashed as crash:
                self._crash = crash
        if self._has_acted and (not self._waits_for_backlog or self.left == 0):
            self._close()

    def _close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._write(_CLOSE, _NORMAL + b"client disconnect")

    def _write(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        size = len(payload)
        head = bytes((0x80 | opcode, 0x80 | size)) if size < 126 else struct.pack("!BBH", 0x80 | opcode, 0xFE, size)
        self._out += head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
