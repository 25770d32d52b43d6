"""The procedures of docs/how-to/disaster-recovery.md with real processes: what survives, and how long it takes.

Each test prints the seconds from the loss until a client's event is stored again, the operator's commands included and
their thinking time not: `pytest -s -m faults tests/faults/test_disaster_recovery.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from posthouse.client import Client, Pins, Published
from posthouse.journal.cursor import Cursor
from posthouse.keys import NodeKey, keyfile
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event
from tests.faults.relay_process import RelayProcess
from tests.postgresql.server import find_installation
from tests.postgresql.standby import Replication, run_replication
from tests.relay.cluster.relays import free_port
from tests.relay.replication.follow_process import Standby, leader_in

pytestmark = pytest.mark.campaign
EVENTS = 200
PATIENCE_S = 60
AUTHOR = NodeKey(bytes([7]) * 32)


@contextmanager
def measured(loss: str) -> Iterator[None]:
    """Print how long the block took."""
    began_s = time.monotonic()
    yield
    sys.stderr.write(f"\n{loss}: {time.monotonic() - began_s:.1f} s\n")


async def publish(relay: RelayProcess, *contents: str) -> tuple[list[Event], str]:
    """Publish events that the relay answers as stored; return them and the cursor after the last."""
    async with Client(relay.url, AUTHOR, pins=Pins(None)) as client:
        events = [client.sign(content, kind=1) for content in contents]
        answers = await client.publish_many(events)
        for answer in answers:
            assert not isinstance(answer, PosthouseError), answer
        last = answers[-1]
        assert isinstance(last, Published) and last.seq is not None
        return events, str(Cursor((await client.info())["epoch"], last.seq))


async def missing(relay: RelayProcess, events: list[Event]) -> list[Event]:
    """Return the events that the relay does not have."""
    async with Client(relay.url, AUTHOR, pins=Pins(None)) as client:
        found = {stored.event.id for stored in (await client.query({"authors": [AUTHOR.node]}, limit=500)).events}
    return [event for event in events if event.id not in found]


async def read_from(relay: RelayProcess, cursor: str) -> str:
    """Return the code of the refusal of a cursor, empty if a reader goes on at it."""
    async with Client(relay.url, AUTHOR, pins=Pins(None)) as client:
        try:
            await client.query({"authors": [AUTHOR.node]}, cursor=cursor)
        except PosthouseError as refusal:
            return refusal.code
    return ""


def many(word: str) -> list[str]:
    return [f"{word} {number}" for number in range(EVENTS)]


def test_killed_relay_starts_again_with_everything(tmp_path: Path) -> None:
    with RelayProcess(tmp_path) as relay:
        events, cursor = asyncio.run(publish(relay, *many("stored")))
        relay.kill()
        with measured("relay process"):
            relay.start()
            asyncio.run(publish(relay, "again"))
        assert asyncio.run(missing(relay, events)) == []
        assert asyncio.run(read_from(relay, cursor)) == ""


def test_lost_host_comes_back_elsewhere_from_an_archive_with_its_key(tmp_path: Path) -> None:
    archive = tmp_path / "relay.tar"
    with RelayProcess(tmp_path / "lost") as relay:
        events, _cursor = asyncio.run(publish(relay, *many("in the backup")))
        relay.command("relay", "backup", "--with-key", str(archive))
        after, cursor = asyncio.run(publish(relay, "after the backup"))
        node = relay.node
    shutil.rmtree(tmp_path / "lost")
    elsewhere = RelayProcess(tmp_path / "new")
    with measured("relay host, disk"):
        elsewhere.command("relay", "restore", str(archive))
        elsewhere.start()
        asyncio.run(publish(elsewhere, "again"))
    try:
        assert elsewhere.node == node
        assert asyncio.run(missing(elsewhere, events + after)) == after
        assert asyncio.run(read_from(elsewhere, cursor)) == "cursor_reset"
    finally:
        elsewhere.kill()


def test_lost_region_goes_on_at_the_follower_in_another_one(tmp_path: Path) -> None:
    keyfile.create(tmp_path / "follower-key.json", NodeKey.generate())
    leader = leader_in(tmp_path, tmp_path / "follower-key.json")
    standby = Standby(tmp_path, leader, tmp_path / "follower-key.json")
    promoted = RelayProcess(standby.data_dir.parent, home=tmp_path / "home")
    promoted.port = free_port()
    try:
        leader.start()
        events, _cursor = asyncio.run(publish(leader, *many("followed")))
        standby.start()
        shutil.copy(leader.data_dir / "key.json", standby.data_dir / "key.json")
        leader.kill()
        shutil.rmtree(leader.folder)
        standby.kill()
        with measured("region, with a follower elsewhere"):
            assert standby.run("relay", "promote")[0] == 0
            promoted.start()
            asyncio.run(_publish_at(f"{leader.url},{promoted.url}"))
        assert promoted.node == leader.node
        assert asyncio.run(missing(promoted, events)) == []
    finally:
        for process in (leader, standby, promoted):
            process.kill()


async def _publish_at(addresses: str) -> None:
    """Publish as a client that knows both regions, the lost one first."""
    async with Client(addresses, AUTHOR, pins=Pins(None)) as client:
        await client.connect(is_patient=True)
        await client.publish("again", kind=1)


def test_lost_key_comes_back_from_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "relay.tar"
    with RelayProcess(tmp_path) as relay:
        events, cursor = asyncio.run(publish(relay, *many("stored")))
        relay.command("relay", "backup", "--with-key", str(archive))
        node = relay.node
        relay.kill()
        key = relay.data_dir / "key.json"
        key.unlink()
        with pytest.raises(Exception, match="key"):
            relay.start()
        with measured("key"):
            subprocess.run(["tar", "-xf", archive, "-C", relay.data_dir, "key.json"], check=True)
            relay.start()
            asyncio.run(publish(relay, "again"))
        assert (relay.node, asyncio.run(missing(relay, events))) == (node, [])
        assert asyncio.run(read_from(relay, cursor)) == ""


def test_older_file_that_an_operator_put_back_is_noticed(tmp_path: Path) -> None:
    with RelayProcess(tmp_path) as relay:
        asyncio.run(publish(relay, *many("in the copy")))
        relay.stop()
        store = relay.data_dir / "relay.db"
        shutil.copy(store, tmp_path / "older.db")
        relay.start()
        after, cursor = asyncio.run(publish(relay, "after the copy"))
        relay.stop()
        shutil.copy(tmp_path / "older.db", store)
        with pytest.raises(Exception, match="older copy"):
            relay.start()
        with measured("operator error"):
            relay.command("relay", "restore", "--in-place")
            relay.start()
            asyncio.run(publish(relay, "again"))
        assert asyncio.run(missing(relay, after)) == after
        assert asyncio.run(read_from(relay, cursor)) == "cursor_reset"


@pytest.fixture
def pair() -> Iterator[Replication]:
    """A primary with an asynchronous standby."""
    installation = find_installation()
    if installation is None or not (installation / "bin" / "pg_basebackup").exists():
        pytest.skip("no PostgreSQL with pg_basebackup")
    with run_replication(installation) as running:
        yield running


def test_relay_goes_on_after_the_promotion_of_a_synchronous_standby(tmp_path: Path, pair: Replication) -> None:
    pair.set_synchronous(is_on=True)
    with RelayProcess(tmp_path, "--store", pair.url) as relay:
        events, _cursor = asyncio.run(publish(relay, *many("answered")))
        with measured("database, synchronous standby"):
            pair.lose_primary()
            pair.promote()
            asyncio.run(publish(relay, "again"))
        assert not relay.is_dead
        assert asyncio.run(missing(relay, events)) == []


def test_relay_starts_again_after_the_promotion_of_an_asynchronous_standby(tmp_path: Path, pair: Replication) -> None:
    with RelayProcess(tmp_path, "--store", pair.url) as relay:
        pair.standby.stop()
        events, cursor = asyncio.run(publish(relay, *many("never replicated")))
        with measured("database, asynchronous standby"):
            pair.lose_primary()
            pair.standby.start()
            pair.promote()
            asyncio.run(_ends(relay))
            relay.kill()
            relay.start()  # as the service manager does
            asyncio.run(publish(relay, "again"))
        assert asyncio.run(missing(relay, events)) == events
        assert asyncio.run(read_from(relay, cursor)) == "cursor_reset"


async def _ends(relay: RelayProcess) -> None:
    """Publish until the relay has noticed that it is on another server."""
    async with asyncio.timeout(PATIENCE_S), Client(relay.url, AUTHOR, pins=Pins(None)) as client:
        while not relay.is_dead:
            event = client.sign("does the relay notice?", kind=1)
            try:
                await client.submit([event])
            except PosthouseError:
                await asyncio.sleep(0.05)
