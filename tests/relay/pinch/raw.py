"""A Pinch connection without an agent: the test itself sends every frame and every pong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from examples.pinch_agent.agent import Agent
from examples.pinch_agent.pinch_pb2 import AuthChallenge, AuthResult, Envelope
from tests.relay.edge import PATIENCE_S, Edge
from tests.relay.pinch.house import HOST


class Raw:
    """A WebSocket to /ws."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self.socket = socket
        self.challenge = AuthChallenge()
        self.pings: list[bytes] = []

    async def receive(self) -> Envelope | int:
        """Return the next envelope, or the code the relay closed with; pings are noted and not answered."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.socket.receive()
                if message.type is aiohttp.WSMsgType.PING:
                    self.pings.append(bytes(message.data))
                elif message.type is aiohttp.WSMsgType.BINARY:
                    return Envelope.FromString(message.data)
                elif message.type is aiohttp.WSMsgType.CLOSE:
                    return int(message.data)
                else:
                    return int(self.socket.close_code or 0)

    async def envelope(self) -> Envelope:
        """Return the next envelope, which must come."""
        received = await self.receive()
        assert isinstance(received, Envelope), received
        return received

    async def routed(self) -> Envelope:
        """Return the next envelope of another agent, which must come, skipping those of the relay."""
        while not (envelope := await self.envelope()).from_address:
            pass
        return envelope

    async def closed(self) -> int:
        """Return the code that the relay closes with, skipping frames before it."""
        while isinstance(received := await self.receive(), Envelope):
            pass
        return received

    def abort(self) -> None:
        """Drop the connection without a close frame, as a killed process does."""
        response: Any = self.socket._response
        response.connection.transport.abort()

    async def answer(self, agent: Agent) -> AuthResult:
        """Log in as an agent and return the result."""
        await self.socket.send_bytes(agent.answer(self.challenge.nonce, self.challenge.relay_host).SerializeToString())
        return (await self.envelope()).auth_result


@asynccontextmanager
async def raw(edge: Edge, **options: Any) -> AsyncIterator[Raw]:
    """Open a connection and take the challenge."""
    async with edge.session.ws_connect(
        edge.url + "/ws", autoping=False, autoclose=False, max_msg_size=0, **options
    ) as socket:
        made = Raw(socket)
        made.challenge = (await made.envelope()).auth_challenge
        yield made


@asynccontextmanager
async def logged_in(edge: Edge, agent: Agent | None = None, **options: Any) -> AsyncIterator[Raw]:
    """Open a connection that is logged in."""
    async with raw(edge, **options) as made:
        assert (await made.answer(agent or Agent(HOST))).success
        yield made
