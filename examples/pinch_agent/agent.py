"""A small Pinch agent: it logs in with its key, sends sealed messages, and confirms what it has read.

Everything it knows of a relay is the wire: one binary WebSocket frame is one protobuf envelope. It imports nothing of
posthouse, so it stands for an agent written by someone else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from types import TracebackType
from typing import Self

import aiohttp
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from examples.pinch_agent.address import read_key, write_address
from examples.pinch_agent.box import open_box, seal
from examples.pinch_agent.pinch_pb2 import (
    AuthResponse,
    BlockNotification,
    ConnectionRequest,
    DeliveryConfirm,
    Envelope,
    MessageType,
    UnblockNotification,
)

MESSAGE = MessageType.MESSAGE_TYPE_MESSAGE
CONFIRM = MessageType.MESSAGE_TYPE_DELIVERY_CONFIRM


class LoginRefused(Exception):
    """The relay refused the login; the text is the relay's."""


class Agent:
    """One identity and its connection, if any."""

    def __init__(self, relay: str, key: SigningKey | None = None) -> None:
        """Create an agent for a relay, given by its name in addresses."""
        self.relay = relay
        self.key = key or SigningKey.generate()
        self.address = write_address(bytes(self.key.verify_key), relay)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self._came: asyncio.Queue[Envelope | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._sequence = 0

    async def connect(self, url: str) -> None:
        """Log in to the relay at a URL such as http://127.0.0.1:7420."""
        await self.disconnect()
        self._session = aiohttp.ClientSession()
        try:
            self._socket = await self._session.ws_connect(f"{url}/ws", max_msg_size=0)
            await self._log_in(self._socket)
        except BaseException:
            await self._session.close()
            raise
        self._came = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(self._socket))

    async def disconnect(self) -> None:
        """Close the connection."""
        if self._socket is not None and self._session is not None:
            await self._socket.close()
            await self._session.close()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.disconnect()

    @property
    def close_code(self) -> int | None:
        """The code the relay closed the connection with."""
        return None if self._socket is None else self._socket.close_code

    async def receive(self) -> Envelope:
        """Return the next envelope; raise ConnectionError if the relay has closed the connection."""
        envelope = await self._came.get()
        if envelope is None:
            raise ConnectionError(f"the relay closed with {self.close_code}")
        return envelope

    async def send(self, envelope: Envelope) -> None:
        """Send an envelope unchanged."""
        assert self._socket is not None
        await self._socket.send_bytes(envelope.SerializeToString())

    async def write(self, to: str, text: str) -> str:
        """Send a sealed message and return its id."""
        envelope = self.compose(to, text)
        await self.send(envelope)
        return envelope.message_id.decode()

    def compose(self, to: str, text: str) -> Envelope:
        """Return a sealed message."""
        self._sequence += 1
        envelope = self._envelope(to, MESSAGE)
        envelope.message_id = str(uuid.uuid4()).encode()
        envelope.encrypted.CopyFrom(seal(self.key, read_key(to), text, self._sequence, envelope.timestamp))
        return envelope

    def read(self, envelope: Envelope) -> str:
        """Return the text of a message."""
        return open_box(self.key, read_key(envelope.from_address), envelope.encrypted)

    async def confirm(self, envelope: Envelope, state: str = "delivered") -> None:
        """Confirm to the sender, through the relay, that a message was read."""
        await self.send(self.confirmation(envelope, state))

    def confirmation(self, envelope: Envelope, state: str = "delivered") -> Envelope:
        """Return the confirm of a message."""
        confirm = self._envelope(envelope.from_address, CONFIRM)
        signed = envelope.message_id + confirm.timestamp.to_bytes(8, "big", signed=True)
        confirm.delivery_confirm.CopyFrom(
            DeliveryConfirm(
                message_id=envelope.message_id,
                signature=self.key.sign(signed).signature,
                timestamp=confirm.timestamp,
                state=state,
            )
        )
        return confirm

    def is_confirmed_by_reader(self, envelope: Envelope) -> bool:
        """Return True if a confirm was signed by the agent it comes from."""
        given = envelope.delivery_confirm
        signed = given.message_id + given.timestamp.to_bytes(8, "big", signed=True)
        try:
            VerifyKey(read_key(envelope.from_address)).verify(signed, given.signature)
        except BadSignatureError:
            return False
        return True

    async def ask(self, to: str, text: str) -> None:
        """Ask another agent for a connection."""
        envelope = self._envelope(to, MessageType.MESSAGE_TYPE_CONNECTION_REQUEST)
        request = ConnectionRequest(
            from_address=self.address, to_address=to, message=text, sender_public_key=bytes(self.key.verify_key)
        )
        envelope.connection_request.CopyFrom(request)
        await self.send(envelope)

    async def block(self, address: str) -> None:
        """Block an address."""
        envelope = self._envelope("", MessageType.MESSAGE_TYPE_BLOCK_NOTIFICATION)
        envelope.block_notification.CopyFrom(BlockNotification(blocker_address=self.address, blocked_address=address))
        await self.send(envelope)

    async def unblock(self, address: str) -> None:
        """Unblock an address."""
        envelope = self._envelope("", MessageType.MESSAGE_TYPE_UNBLOCK_NOTIFICATION)
        envelope.unblock_notification.CopyFrom(
            UnblockNotification(unblocker_address=self.address, unblocked_address=address)
        )
        await self.send(envelope)

    def _envelope(self, to: str, type_: MessageType) -> Envelope:
        return Envelope(version=1, from_address=self.address, to_address=to, type=type_, timestamp=_now_ms())

    async def _log_in(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        challenge = Envelope.FromString(await socket.receive_bytes()).auth_challenge
        await socket.send_bytes(self.answer(challenge.nonce, challenge.relay_host).SerializeToString())
        result = Envelope.FromString(await socket.receive_bytes()).auth_result
        if not result.success:
            raise LoginRefused(result.error_message)
        assert result.assigned_address == self.address

    def answer(self, nonce: bytes, relay: str) -> Envelope:
        """Return the proof that this agent has its key."""
        signature = self.key.sign(b"pinch-auth-v1\0" + relay.encode() + b"\0" + nonce).signature
        response = AuthResponse(version=1, public_key=bytes(self.key.verify_key), signature=signature, nonce=nonce)
        envelope = self._envelope("", MessageType.MESSAGE_TYPE_AUTH_RESPONSE)
        envelope.auth_response.CopyFrom(response)
        return envelope

    def take(self, envelope: Envelope) -> None:
        """Take an envelope that was just read; the relay sends a message again only until this agent answers a ping."""
        self._came.put_nowait(envelope)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        """Keep reading, so that pings are answered while this agent is busy."""
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.take(Envelope.FromString(message.data))
        except ConnectionError:  # a pong found the connection gone: `receive` reports it
            pass
        finally:
            self._came.put_nowait(None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - an agent is not part of posthouse and has its own clock
