"""Idle connections stay for as long as both ends answer pings, even if the clock does not move meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse.client import Client, ClientOptions
from posthouse.client.trust.pins import Pins
from tests.relay.edge import Author, running
from tests.relay.hostile.wire import wire
from tests.relay.idle_time import IdleTimeLoop

CROWD = 50
TEN_MINUTES_S = 600.0


def on_idle_time(work: Any) -> None:
    with asyncio.Runner(loop_factory=IdleTimeLoop) as runner:
        runner.run(work)


async def soak(home: Path, count: int, ping_s: float, heartbeat_s: float) -> None:
    """Keep clients idle for ten minutes; half of them read their mailbox."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleTimeLoop)
    async with running(home / "relay", ping_s=ping_s) as edge, AsyncExitStack() as stack:
        options = ClientOptions(heartbeat_s=heartbeat_s)
        clients: list[Client] = []
        for number in range(count):
            client = Client(edge.url, Author().key, pins=Pins(home / "pins.json"), options=options)
            clients.append(await stack.enter_async_context(client))
            await client.connect()
            if number % 2:
                await stack.enter_async_context(await client.receive())
        await loop.pass_time(TEN_MINUTES_S)
        assert [client.is_up for client in clients] == [True] * count
        assert [client._link.connections for client in clients] == [1] * count
        assert edge.server.context.meters.counted("posthouse_relay_streams_closed_total", "dead") == 0


@pytest.mark.parametrize(
    ("ping_s", "heartbeat_s"),
    [(25.0, 3_600.0), (3_600.0, 30.0), (25.0, 25.0)],
    ids=["the relay pings", "the client pings", "both ping at once"],
)
def test_fifty_idle_clients_keep_their_connections_for_ten_minutes(
    tmp_path: Path, ping_s: float, heartbeat_s: float
) -> None:
    on_idle_time(soak(tmp_path, CROWD, ping_s, heartbeat_s))


async def drop_the_deaf(home: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleTimeLoop)
    with capture_logs() as entries:
        async with running(home / "relay") as edge, edge.stream(Author()) as deaf, wire(edge) as stranger:
            await stranger.upgrade()
            await loop.pass_time(60.0)
            assert not edge.server.context.connections
            assert not await stranger.read_all() or stranger.reader.at_eof()
            del deaf
    (ended,) = [entry for entry in entries if entry["event"] == "connection_ended" and entry["log_level"] == "info"]
    assert (ended["reason"], ended["close_code"]) == ("dead", 1006)
    assert ended["peer"].startswith("ed25519:")
    assert 25 <= ended["open_s"] < 60


def test_peer_that_answers_no_ping_is_dropped_and_the_log_says_why(tmp_path: Path) -> None:
    on_idle_time(drop_the_deaf(tmp_path))
