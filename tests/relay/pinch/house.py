"""A relay that speaks Pinch, and agents written from the wire alone that talk to it on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.pinch_agent.agent import CONFIRM, MESSAGE, Agent
from examples.pinch_agent.pinch_pb2 import Envelope, MessageType
from posthouse.model.clock import Clock
from posthouse.relay.pinch.agent_connection import PinchConnection
from posthouse.relay.pinch.endpoint import PinchEndpoint
from posthouse.relay.pinch.pinch_settings import PinchSettings
from posthouse.relay.pinch.submissions import Outcome
from tests.relay.edge import PATIENCE_S, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.waiting import eventually
from tests.relay.messages.wires import Got, SentConfirmation

HOST = "relay.test"
QUEUE_FULL = MessageType.MESSAGE_TYPE_QUEUE_FULL
QUEUE_STATUS = MessageType.MESSAGE_TYPE_QUEUE_STATUS
RATE_LIMITED = MessageType.MESSAGE_TYPE_RATE_LIMITED
FAST = PinchSettings(HOST, rate_per_s=1e6, burst=1_000_000, settle_s=0.0)
_ENVELOPES = "posthouse_relay_pinch_envelopes_total"


@asynccontextmanager
async def pinching(
    data_dir: Path, clock: Clock | None = None, queues: dict[str, Any] | None = None, **pinch: Any
) -> AsyncIterator[Edge]:
    """Run a relay that speaks Pinch; afterwards its store must be consistent."""
    async with checked(data_dir, clock, pinch=replace(FAST, **pinch), **(queues or {})) as edge:
        yield edge


def endpoint(edge: Edge) -> PinchEndpoint:
    """Return the Pinch endpoint of a relay."""
    pinch = edge.server.pinch
    assert pinch is not None
    return pinch


def connection_of(edge: Edge, address: str) -> PinchConnection:
    """Return the relay's end of an agent's connection."""
    return next(each for each in endpoint(edge).connections if each.address == address)


def taken(edge: Edge, type_: str, *outcomes: Outcome) -> int:
    """Return the number of envelopes of a type with these outcomes."""
    return sum(edge.server.context.meters.counted(_ENVELOPES, type_, outcome.value) for outcome in outcomes)


async def until(holds: Callable[[], bool]) -> None:
    """Return once a condition holds."""

    async def look() -> bool:
        return holds()

    await eventually(look)


class PinchParty:
    """A Pinch agent with the interface of the delivery cases; the other Pinch tests use it too."""

    def __init__(self, edge: Edge, agent: Agent | None = None) -> None:
        self.edge = edge
        self.agent = agent or Agent(HOST)
        #: envelopes that came and were not asked for yet
        self.other: list[Envelope] = []

    @property
    def address(self) -> str:
        return self.agent.address

    async def connect(self) -> None:
        self.other = []
        async with asyncio.timeout(PATIENCE_S):
            await self.agent.connect(self.edge.url)

    async def disconnect(self) -> None:
        await self.agent.disconnect()
        await self._gone()

    async def cut(self) -> None:
        response: Any = self.agent._socket
        response._response.connection.transport.abort()
        await self.agent.disconnect()
        await self._gone()

    async def next(self, type_: MessageType) -> Envelope:
        """Return the next envelope of a type; others are kept."""
        for number, envelope in enumerate(self.other):
            if envelope.type == type_:
                return self.other.pop(number)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                envelope = await self.agent.receive()
                if envelope.type == type_:
                    return envelope
                self.other.append(envelope)

    async def silence(self) -> list[Envelope]:
        """Return all envelopes that arrive until the relay has nothing more to send."""
        connection, mailboxes = connection_of(self.edge, self.address), self.edge.server.context.engine.sessions
        await until(lambda: mailboxes.statistics()["behind"] == 0)
        assert await connection.answers_ping()  # the agent has read everything before the ping
        while not self.agent._came.empty():
            self.other.append(await self.agent.receive())
        return self.other

    async def pending(self) -> int:
        return (await self.next(QUEUE_STATUS)).queue_status.pending_count

    async def send(self, to: PinchParty, body: str) -> str:
        before = taken(self.edge, "message", Outcome.ACCEPTED)
        message_id = await self.agent.write(to.address, body)
        await until(lambda: taken(self.edge, "message", Outcome.ACCEPTED) > before)
        return message_id

    async def send_refused(self, to: PinchParty, body: str) -> tuple[str, str]:
        message_id = await self.agent.write(to.address, body)
        refusal = await self.next(QUEUE_FULL)
        assert refusal.queue_full.recipient_address == to.address
        assert "full" in refusal.queue_full.reason
        return message_id, refusal.message_id.decode()

    async def messages(self, count: int) -> list[Envelope]:
        """Return the next messages as envelopes."""
        return [await self.next(MESSAGE) for _ in range(count)]

    async def receive(self, count: int) -> list[Got]:
        return [self._got(envelope) for envelope in await self.messages(count)]

    async def confirm(self, sender: PinchParty, *ids: str) -> None:
        before = taken(self.edge, "delivery_confirm", *Outcome)
        for id_ in ids:
            await self.agent.confirm(Envelope(from_address=sender.address, message_id=id_.encode()))
        await until(lambda: taken(self.edge, "delivery_confirm", *Outcome) == before + len(ids))

    async def confirmed(self, count: int) -> list[SentConfirmation]:
        return [self._confirmed(await self.next(CONFIRM)) for _ in range(count)]

    async def left(self) -> list[Got]:
        return [self._got(envelope) for envelope in await self.silence() if envelope.type == MESSAGE]

    async def unread_confirmations(self) -> list[SentConfirmation]:
        return [self._confirmed(envelope) for envelope in await self.silence() if envelope.type == CONFIRM]

    async def block(self, other: PinchParty) -> None:
        await self.agent.block(other.address)
        await until(lambda: other.address in self._blocks())

    async def unblock(self, other: PinchParty) -> None:
        await self.agent.unblock(other.address)
        await until(lambda: other.address not in self._blocks())

    def _blocks(self) -> set[str]:
        return self.edge.server.context.engine.meshes.find("pinch").blocks.get(self.address, set())

    async def _gone(self) -> None:
        await until(lambda: all(each.address != self.address for each in endpoint(self.edge).connections))

    def _got(self, envelope: Envelope) -> Got:
        return Got(envelope.message_id.decode(), self.agent.read(envelope))

    def _confirmed(self, envelope: Envelope) -> SentConfirmation:
        assert self.agent.is_confirmed_by_reader(envelope)
        given = envelope.delivery_confirm
        return SentConfirmation(given.message_id.decode(), given.was_stored)


class PinchWire:
    """The wire under test; ends its parties with the test."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._parties: list[PinchParty] = []

    def party(self) -> PinchParty:
        self._parties.append(PinchParty(self.edge))
        return self._parties[-1]

    async def close(self) -> None:
        for party in self._parties:
            await party.agent.disconnect()


@asynccontextmanager
async def wire(edge: Edge) -> AsyncIterator[PinchWire]:
    """Make parties, and disconnect all of them in the end."""
    made = PinchWire(edge)
    try:
        yield made
    finally:
        await made.close()
