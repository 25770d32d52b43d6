"""Keep-alive: silent listeners and slow readers stay connected, dead peers do not."""

from __future__ import annotations

import asyncio
import socket as sockets
from pathlib import Path
from typing import Any

import aiohttp

from examples.pinch_agent.agent import Agent
from examples.pinch_agent.pinch_pb2 import Envelope
from posthouse.model.clock import FakeClock
from posthouse.model.limits import PINCH_PING_S, PINCH_PONG_S
from tests.relay.edge import PATIENCE_S, Edge
from tests.relay.messages.waiting import eventually
from tests.relay.pinch.house import HOST, connection_of, endpoint, pinching, until, wire
from tests.relay.pinch.raw import logged_in


async def test_listener_silent_for_five_minutes_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await bob.connect()
        await bob.silence()
        connection = connection_of(edge, bob.address)
        pings = 0
        for _second in range(0, 300, 5):
            clock.advance(5)
            endpoint(edge).check_alive()
            edge.server.context.engine.sessions.check_sessions()
            if connection.pinged_at_ns is not None:
                pings += 1
                await until(lambda: connection.pinged_at_ns is None)  # the agent has answered
        assert pings == 300 // PINCH_PING_S
        assert connection.ending is None
        await alice.connect()
        sent = await alice.send(bob, "still there?")
        assert [each.id for each in await bob.receive(1)] == [sent]


async def test_listener_that_answers_no_ping_is_closed(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock, greeting_s=0.0) as edge, logged_in(edge) as deaf:
        await until(lambda: endpoint(edge).logged_in == 1)
        (connection,) = endpoint(edge).connections
        clock.advance(PINCH_PING_S - 1)
        endpoint(edge).check_alive()
        assert connection.pinged_at_ns is None
        clock.advance(1)
        endpoint(edge).check_alive()
        clock.advance(PINCH_PONG_S - 0.1)
        endpoint(edge).check_alive()
        assert connection.ending is None
        clock.advance(0.1)
        endpoint(edge).check_alive()
        assert await deaf.closed() == 1008
        assert len(deaf.pings) >= 1


async def test_agent_that_sends_but_answers_no_ping_is_closed(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, logged_in(edge) as deaf:
        await until(lambda: endpoint(edge).logged_in == 1)
        for seconds in (PINCH_PING_S, PINCH_PONG_S):
            await deaf.socket.send_bytes(Envelope(version=1, type=8).SerializeToString())  # type: ignore[arg-type]
            clock.advance(seconds)
            endpoint(edge).check_alive()
        assert await deaf.closed() == 1008


class SlowReader:
    """A reader that reads only when the test lets it; the buffers of both sockets are small."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.agent = Agent(HOST)

    def _narrow(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> Any:
        response: Any = socket._response
        transport = response.connection.transport
        own: sockets.socket = transport.get_extra_info("socket")
        own.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 16 * 1024)
        relays = connection_of(self.edge, self.agent.address).write_buffer._transport.get_extra_info("socket")
        relays.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 16 * 1024)
        transport.pause_reading()
        return transport

    async def read(self, count: int) -> list[bytes]:
        """Log in, stop reading while the relay sends, then read everything; return message ids in order."""
        async with self.edge.session.ws_connect(self.edge.url + "/ws", max_msg_size=0) as socket:
            challenge = Envelope.FromString(await socket.receive_bytes()).auth_challenge
            await socket.send_bytes(self.agent.answer(challenge.nonce, HOST).SerializeToString())
            assert Envelope.FromString(await socket.receive_bytes()).auth_result.success
            transport = self._narrow(socket)
            connection = connection_of(self.edge, self.agent.address)
            await until(lambda: connection.write_buffer.unsent_bytes > 0)
            unsent = connection.write_buffer.unsent_bytes
            transport.resume_reading()
            ids: list[bytes] = []
            while len(ids) < count:
                envelope = Envelope.FromString(await socket.receive_bytes())
                if envelope.message_id:
                    ids.append(envelope.message_id)
            assert unsent < 8 * 1024 * 1024
            return ids


async def test_slow_reader_delays_no_other_reader_and_loses_nothing(tmp_path: Path) -> None:
    async with pinching(tmp_path / "relay", greeting_s=0.5) as edge, wire(edge) as pinch:
        alice, bob, slow = pinch.party(), pinch.party(), SlowReader(edge)
        await alice.connect()
        await bob.connect()
        envelopes = [alice.agent.compose(slow.agent.address, "x" * 40_000) for _ in range(300)]
        for envelope in envelopes:
            await alice.agent.send(envelope)
        store = edge.server.context.engine.store

        async def all_queued() -> bool:
            return await store.deliveries.waiting("pinch", slow.agent.address, 0) == len(envelopes)

        await eventually(all_queued)
        reading = asyncio.create_task(slow.read(len(envelopes)))
        sent = await alice.send(bob, "meanwhile")
        assert [each.id for each in await bob.receive(1)] == [sent]
        async with asyncio.timeout(PATIENCE_S):
            assert await reading == [envelope.message_id for envelope in envelopes]


async def test_reader_that_confirms_nothing_is_closed_with_4008_and_can_confirm_later(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pinching(tmp_path / "relay", clock) as edge, wire(edge) as pinch:
        alice, bob = pinch.party(), pinch.party()
        await alice.connect()
        await bob.connect()
        ids = [await alice.send(bob, str(number)) for number in range(3)]
        await bob.receive(3)
        await bob.silence()
        clock.advance(31)
        edge.server.context.engine.sessions.check_sessions()
        await until(lambda: bob.agent.close_code == 4008)
        await bob._gone()
        sent = await alice.send(bob, "behind them")
        await bob.connect()
        assert [each.id for each in await bob.receive(1)] == [sent]
        assert await bob.left() == []
        await bob.confirm(alice, *ids)
        assert [each.id for each in await alice.confirmed(3)] == ids
