"""A follower over HTTP: it goes on after its leader comes back, takes a new copy when it has to, and shows its lag."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock, system_clock
from posthouse.model.errors import PosthouseError
from posthouse.relay.http.api_server import listen_for_follower
from posthouse.relay.listen import ListenAddress
from posthouse.relay.metrics import Meters
from posthouse.relay.replication.follower import Follower
from posthouse.relay.replication.followers import FollowSettings
from posthouse.relay.server import RelayServer, ServerSettings
from tests.relay.cluster.relays import eventually, free_port
from tests.relay.edge import Author
from tests.relay.replication.leader import tables_of

KEY = NodeKey.generate()


class Leader:
    """A relay on a port of its own that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.settings = ServerSettings(
            listen=ListenAddress("127.0.0.1", free_port()),
            data_dir=folder / "leader",
            follow=FollowSettings(frozenset({KEY.node})),
        )
        self.server = RelayServer(self.settings)
        self.author = Author()

    async def restart(self) -> None:
        await self.server.stop()
        self.server = RelayServer(self.settings)
        await self.server.start()

    async def publish(self, count: int) -> None:
        async with Client(f"http://{self.settings.listen}", self.author.key, pins=Pins(None)) as client:
            for number in range(count):
                await client.publish(str(number), kind=1)

    @property
    def head(self) -> int:
        return self.server.context.live.head


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[Leader]:
    leader = Leader(tmp_path)
    await leader.server.start()
    yield leader
    await leader.server.stop()


@asynccontextmanager
async def following(leader: Leader, folder: Path) -> AsyncIterator[Follower]:
    (folder / "standby").mkdir(exist_ok=True)
    async with Client(f"http://{leader.settings.listen}", KEY, pins=Pins(folder / "pins.json")) as client:
        follower = Follower(client, folder / "standby", system_clock())
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _has(follower: Follower, leader: Leader) -> Callable[[], bool]:
    return lambda: follower.head >= leader.head and follower.lag_records == 0


async def test_follower_has_what_the_leader_committed(leader: Leader, tmp_path: Path) -> None:
    async with following(leader, tmp_path) as follower:
        await leader.publish(20)
        await eventually(_has(follower, leader))
        assert follower.lag_s == 0.0
    assert tables_of(tmp_path / "standby" / "follower.db") == tables_of(tmp_path / "leader" / "relay.db")


async def test_follower_goes_on_when_its_leader_comes_back(leader: Leader, tmp_path: Path) -> None:
    async with following(leader, tmp_path) as follower:
        await leader.publish(3)
        await eventually(_has(follower, leader))
        copy = (tmp_path / "standby" / "follower.db").stat().st_ino
        await leader.restart()
        await leader.publish(3)
        await eventually(_has(follower, leader))
        assert (tmp_path / "standby" / "follower.db").stat().st_ino == copy, "the same copy"


async def test_follower_takes_a_new_copy_when_the_recording_has_ended(leader: Leader, tmp_path: Path) -> None:
    async with following(leader, tmp_path) as follower:
        await leader.publish(3)
        await eventually(_has(follower, leader))
        changes = leader.server.context.engine.store.changes
        assert changes is not None
        await changes.stop()
        await leader.publish(3)
        await eventually(_has(follower, leader))
    assert sorted(path.name for path in (tmp_path / "standby").iterdir()) == ["follower.db", "follower.json"]
    assert tables_of(tmp_path / "standby" / "follower.db") == tables_of(tmp_path / "leader" / "relay.db")


async def test_follower_whose_right_is_taken_away_ends(leader: Leader, tmp_path: Path) -> None:
    async with Client(f"http://{leader.settings.listen}", KEY, pins=Pins(None)) as client:
        (tmp_path / "standby").mkdir()
        running = asyncio.create_task(Follower(client, tmp_path / "standby", system_clock()).run())
        await eventually((tmp_path / "standby" / "follower.db").exists)
        leader.server.apply(replace(leader.settings, follow=FollowSettings()))
        await leader.publish(1)
        with pytest.raises(PosthouseError) as refused:
            await running
        assert refused.value.code == "follow_not_allowed"


async def test_copy_of_another_relay_is_not_replaced(leader: Leader, tmp_path: Path) -> None:
    async with following(leader, tmp_path) as follower:
        await eventually(_has(follower, leader))
    other = Leader(tmp_path / "other")
    await other.server.start()
    try:
        async with Client(f"http://{other.settings.listen}", KEY, pins=Pins(None)) as client:
            with pytest.raises(PosthouseError) as refused:
                await Follower(client, tmp_path / "standby", system_clock()).run()
        assert refused.value.code == "copy_of_another"
    finally:
        await other.server.stop()


async def test_lag_of_a_follower_grows_while_its_leader_is_silent(leader: Leader, tmp_path: Path) -> None:
    clock = FakeClock()
    follower = Follower(Client("http://127.0.0.1:9", KEY, pins=Pins(None)), tmp_path, clock)
    assert follower.lag_s == 0.0
    clock.advance(60)
    meters = Meters()
    follower.watch_metrics(meters)
    listener = await listen_for_follower(meters, ListenAddress("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session, session.get(f"http://{listener.where}/metrics") as response:
        text = await response.text()
    await listener.close()
    assert re.search(r"^posthouse_relay_follower_lag_seconds 60.0$", text, re.MULTILINE)
    assert re.search(r"^posthouse_relay_follower_lag_records 0.0$", text, re.MULTILINE)
