"""kill -9 of the archive and of the relay while history goes to the lake: nothing is lost, nothing needed goes."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey, keyfile
from posthouse.model.event import decode_event, event_id
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter
from posthouse.relay.ops.maintenance import check_relay
from posthouse.sqlite.connection import open_reader
from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.faults.relay_process import RelayProcess
from tests.pipeline.filled_lake import fill_lake

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("archive-faults")]

EVENTS = 3_000
WAITING = 40
PROFILE = 30_000
ADMIN = "admin.json"
_PATIENCE_S = 120


async def make_history(relay: RelayProcess, key: NodeKey, reader: NodeKey, folder: Path) -> dict[str, Any]:
    """Publish events, a line of addressable ones and messages that wait; return what must be found again."""
    pins = Pins(folder / "pins.json")
    async with Client(relay.url, key, pins=pins) as client:
        events = [client.sign(f"event {number}", kind=1) for number in range(EVENTS)]
        line = [client.sign(f"profile {number}", kind=PROFILE, tags=[("d", "me")]) for number in range(5)]
        for part in range(0, EVENTS, 500):
            await client.publish_many(events[part : part + 500])
            await client.publish_many(line[part // 1_000 : part // 1_000 + 1])
        sent = [await client.compose(reader.node, f"waiting {number}") for number in range(WAITING)]
        await client.publish_many(sent)
        current = await client.address(f"{PROFILE}:{key.node}:me")
    return {"ids": [event.id for event in events], "current": current.event.id, "waiting": [each.id for each in sent]}


def pruned_through(store: Path) -> int:
    db = open_reader(store)
    try:
        return int(str(db.execute("SELECT pruned_through FROM journal_state").get))
    finally:
        db.close()


def archiving(relay: RelayProcess, lake: Path) -> Child:
    flags = ("--older-than", "1s", "--relay", relay.url, "--lake", lake, "--key-file", relay.folder / ADMIN, "--json")
    return Child("posthouse.cli.main", "pipeline", "archive", *flags, env={"POSTHOUSE_HOME": str(relay.home)})


def archive_all(relay: RelayProcess, lake: Path) -> None:
    """Archive until every event has become old enough and went."""
    for _ in range(20):
        with archiving(relay, lake) as child:
            assert child.wait(_PATIENCE_S) == 0, child.errors
        if pruned_through(relay.data_dir / "relay.db") > EVENTS:
            return
    raise AssertionError("the archive does not come to its end")


def kill_on_the_way(relay: RelayProcess, lake: Path, dice: random.Random) -> bool:
    """Kill one of the two once the horizon has moved some way; tell whether it was on its way."""
    store = relay.data_dir / "relay.db"
    before = pruned_through(store)
    target = before + dice.choice([1, 100, 300, 700])
    with archiving(relay, lake) as child:
        while (reached := pruned_through(store)) < target and not child.is_over:
            time.sleep(0.002)  # leaves the processor to the two; a child that hangs ends by its own timeouts
        if dice.random() < 0.6:
            relay.kill()
            relay.start()
        child.kill()
    return before < reached


async def test_archive_killed_anywhere_loses_nothing_and_deletes_nothing_needed(tmp_path: Path) -> None:
    dice, key, reader = chance("archive"), NodeKey.generate(), NodeKey.generate()
    lake = Lake(tmp_path / "lake")
    relay = RelayProcess(tmp_path, "--admin", key.node)
    store = relay.data_dir / "relay.db"
    with relay:
        keyfile.create(relay.folder / ADMIN, key)
        made = await make_history(relay, key, reader, tmp_path)
        fill_lake(lake, store, rows_per_file=400)
        kills, on_the_way = rounds(3, 20), 0
        for _ in range(kills):
            on_the_way += kill_on_the_way(relay, lake.path, dice)
            assert check_relay(store) == []
            assert lost(lake, store, made["ids"]) == []
        archive_all(relay, lake.path)
        assert on_the_way > 0, "no kill met the archive at work"
        assert check_relay(store) == []
        assert lost(lake, store, made["ids"]) == []
        await _check_needed(relay, key, reader, made, tmp_path)
        assert audit_findings(store) == []


async def _check_needed(relay: RelayProcess, key: NodeKey, reader: NodeKey, made: dict[str, Any], folder: Path) -> None:
    async with Client(relay.url, key, pins=Pins(folder / "pins.json")) as client:
        assert (await client.address(f"{PROFILE}:{key.node}:me")).event.id == made["current"]
    async with Client(relay.url, reader, pins=Pins(folder / "pins.json")) as client:
        async with await client.receive(window=WAITING) as mailbox:
            got = [await asyncio.wait_for(anext(aiter(mailbox)), 30) for _ in range(WAITING)]
        assert [delivery.id for delivery in got] == made["waiting"]


def lost(lake: Lake, store: Path, ids: list[str]) -> list[str]:
    """Return the events that neither the lake nor the store has, whole."""
    found = set()
    rows = BronzeScan(lake, "bronze_events").rows(RowFilter(), ("event",))
    contents = [row["event"].encode() for row in rows if row["event"] is not None]
    db = open_reader(store)
    try:
        contents += [bytes(raw) for (raw,) in db.execute("SELECT raw FROM events WHERE raw IS NOT NULL")]
    finally:
        db.close()
    for content in contents:
        event = decode_event(content)
        if event_id(event.canonical()) == event.id:
            found.add(event.id)
    return [each for each in ids if each not in found]


async def test_control_what_the_lake_lost_is_found_missing(tmp_path: Path) -> None:
    """The check of this campaign sees a loss, when a file of the lake goes after the archive."""
    key, reader = NodeKey.generate(), NodeKey.generate()
    lake = Lake(tmp_path / "lake")
    with RelayProcess(tmp_path, "--admin", key.node) as relay:
        store = relay.data_dir / "relay.db"
        keyfile.create(relay.folder / ADMIN, key)
        made = await make_history(relay, key, reader, tmp_path)
        fill_lake(lake, store, rows_per_file=400)
        archive_all(relay, lake.path)
    fewer = Lake(tmp_path / "fewer")
    fill_lake(fewer, store)
    assert len(lost(fewer, store, made["ids"])) == EVENTS
