"""`posthouse relay follow` and `promote` as real processes: kill -9 of either side, and clients that go on."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import time
from pathlib import Path

import pytest

from posthouse.client import Client
from posthouse.client.daemon import DaemonClient
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey, keyfile
from posthouse.model.errors import PosthouseError
from posthouse.relay.ops.maintenance import check_relay
from tests.faults.daemon_process import DaemonProcess
from tests.faults.relay_process import START_S, RelayProcess
from tests.relay.cluster.relays import free_port
from tests.relay.edge import PATIENCE_S
from tests.relay.replication.follow_process import Standby, leader_in
from tests.relay.replication.leader import tables_of


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key of a node that may follow."""
    keyfile.create(tmp_path / "follower-key.json", NodeKey.generate())
    return tmp_path / "follower-key.json"


async def _send_until_killed(client: Client, acknowledged: list[str]) -> None:
    while True:
        try:
            published = await client.publish(f"{len(acknowledged)}", kind=1)
        except PosthouseError:
            return
        acknowledged.append(published.event.id)


async def test_promoted_copy_goes_on_after_kill_of_the_leader_under_load(tmp_path: Path, key: Path) -> None:
    pins = Pins(tmp_path / "pins.json")
    leader = leader_in(tmp_path, key)
    await asyncio.to_thread(leader.start)
    standby = Standby(tmp_path, leader, key)
    try:
        holder = NodeKey.generate()
        async with Client(leader.url, holder, pins=pins) as client:
            granted = await client.locks.acquire("build", lease_ms=60_000)
            token = granted.token
            first = await client.publish("before the copy", kind=1)
            await asyncio.to_thread(standby.start)
            acknowledged: list[str] = [first.event.id]
            sending = asyncio.create_task(_send_until_killed(client, acknowledged))
            await _reaches(acknowledged, 30)
            await asyncio.to_thread(standby.kill)
            await _reaches(acknowledged, 60)
            await asyncio.to_thread(standby.start)  # it goes on from its own position
            cursor = (await client.query({"kinds": [1]}, limit=5, order="desc")).cursor
            await _reaches(acknowledged, 90)
            leader.kill()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        standby.kill()
        copy = standby.data_dir / "follower.db"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        applied = {row[1].hex() for row in tables_of(copy)["events"]}
        assert set(acknowledged[:60]) <= applied, "what the follower had applied stays"
        shutil.copy(leader.data_dir / "key.json", standby.data_dir / "key.json")
        assert (await asyncio.to_thread(standby.run, "relay", "up"))[0] != 0, "a copy does not serve"
        code, errors = await asyncio.to_thread(standby.run, "relay", "promote")
        assert code == 0, errors
        assert check_relay(standby.data_dir / "relay.db") == []
        with RelayProcess(standby.data_dir.parent, home=tmp_path / "home") as promoted:
            assert promoted.node == leader.node
            addresses = f"{leader.url},{promoted.url}"
            async with Client(addresses, holder, pins=pins) as client:
                await client.connect(is_patient=True)
                again = await client.locks.acquire("other", lease_ms=60_000)
                assert again.token > token
                with pytest.raises(PosthouseError) as reset:
                    await client.query({"kinds": [1]}, cursor=cursor)
                assert reset.value.code == "cursor_reset"
                await client.publish("after the promotion", kind=1)
                found = await client.query({"kinds": [1]}, limit=500)
                assert applied <= {stored.event.id for stored in found.events} | _others(standby)
    finally:
        standby.kill()
        leader.kill()


def _others(standby: Standby) -> set[str]:
    """Return the ids of events that are no notes."""
    return {row[1].hex() for row in tables_of(standby.data_dir / "relay.db")["events"] if row[3] != 1}


async def _reaches(acknowledged: list[str], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(acknowledged) < count:  # noqa: ASYNC110 - no event says when
            await asyncio.sleep(0.005)


def test_copy_equals_the_leader_that_has_stopped(tmp_path: Path, key: Path) -> None:
    leader = leader_in(tmp_path, key)
    leader.start()
    standby = Standby(tmp_path, leader, key)
    try:
        standby.start()
        asyncio.run(_publish(leader.url, tmp_path, 50))
        leader.kill()
        leader.start()  # after a kill the recording goes on
        asyncio.run(_publish(leader.url, tmp_path, 50))
        leader.stop()
        standby.kill()
        standby.kill()
        leader.start()
        told = standby.start()
        leader.kill()
        standby.kill()
        assert told["seq"] > 100
        assert tables_of(standby.data_dir / "follower.db") == tables_of(leader.data_dir / "relay.db")
    finally:
        standby.kill()
        leader.kill()


async def _publish(url: str, folder: Path, count: int) -> None:
    async with Client(url, NodeKey.generate(), pins=Pins(folder / "pins.json")) as client:
        for number in range(count):
            await client.publish(str(number), kind=1)


def test_promotion_is_refused_while_the_leader_answers(tmp_path: Path, key: Path) -> None:
    leader = leader_in(tmp_path, key)
    leader.start()
    standby = Standby(tmp_path, leader, key)
    try:
        standby.start()
        code, errors = standby.run("relay", "promote")
        assert (code, json.loads(errors)["code"]) == (1, "store_in_use")
        standby.kill()
        code, errors = standby.run("relay", "promote")
        assert (code, json.loads(errors)["code"]) == (1, "leader_answers")
        assert (standby.data_dir / "follower.db").exists()
        assert standby.run("relay", "promote", "--force")[0] == 0
        assert sorted(path.name for path in standby.data_dir.iterdir()) == [
            "follower.db.lock",
            "relay.db",
            "relay.high-water",
            "relay.lock",
        ]
        code, errors = standby.run("relay", "follow", leader.url, "--key-file", str(key))
        assert json.loads(errors.splitlines()[-1])["code"] == "store_exists"
    finally:
        standby.kill()
        leader.kill()


def test_node_that_is_not_listed_may_not_follow(tmp_path: Path, key: Path) -> None:
    stranger = tmp_path / "stranger.json"
    keyfile.create(stranger, NodeKey.generate())
    leader = leader_in(tmp_path, key, "--admin", keyfile.load(stranger).node)
    leader.start()
    try:
        standby = Standby(tmp_path, leader, stranger)
        code, errors = standby.run("relay", "follow", leader.url, "--key-file", str(stranger))
        assert (code, json.loads(errors.splitlines()[-1])["code"]) == (4, "follow_not_allowed")
        assert not (standby.data_dir / "follower.db").exists()
    finally:
        leader.kill()


def test_leader_on_postgresql_says_that_it_cannot_be_followed(tmp_path: Path, key: Path, database: str) -> None:
    leader = leader_in(tmp_path, key, "--store", database)
    leader.start()
    try:
        standby = Standby(tmp_path, leader, key)
        code, errors = standby.run("relay", "follow", leader.url, "--key-file", str(key))
        problem = json.loads(errors.splitlines()[-1])
        assert (code, problem["code"]) == (1, "follow_unsupported")
        assert problem["hint"]
        assert not (standby.data_dir / "follower.db").exists()
    finally:
        leader.kill()


def test_daemons_that_know_both_addresses_go_on_with_the_promoted_relay(tmp_path: Path, key: Path) -> None:
    leader = leader_in(tmp_path, key)
    leader.start()
    standby = Standby(tmp_path, leader, key)
    promoted = RelayProcess(standby.data_dir.parent, home=tmp_path / "home")
    promoted.port = free_port()
    addresses = f"{leader.url},{promoted.url}"
    try:
        standby.start()
        with (
            DaemonProcess(tmp_path / "1", addresses) as one,
            DaemonProcess(tmp_path / "2", addresses) as two,
            DaemonClient(one.directory) as sender,
            DaemonClient(two.directory) as reader,
        ):
            sender.send(two.node, "before")
            _receives(reader, ["before"])
            leader.kill()
            sender.send(two.node, "while no relay runs")
            standby.kill()
            shutil.copy(leader.data_dir / "key.json", standby.data_dir / "key.json")
            code, errors = standby.run("relay", "promote")
            assert code == 0, errors
            promoted.start()
            _receives(reader, ["before", "while no relay runs"])
    finally:
        for process in (standby, leader, promoted):
            process.kill()


def _receives(reader: DaemonClient, bodies: list[str]) -> None:
    """Wait until the inbox of a daemon holds these messages, each once."""
    until_s = time.monotonic() + START_S
    while (found := sorted(item.body or "" for item in reader.inbox())) != sorted(bodies):
        assert time.monotonic() < until_s, found
        time.sleep(0.05)
