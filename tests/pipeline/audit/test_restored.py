"""Histories that went through a restore or a pruning are clean; a token that falls back after a restore is found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from posthouse.keys import NodeKey
from posthouse.model.clock import system_clock
from posthouse.pipeline.audit.stores import Histories, audit_histories, audit_stores, read_stores
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from tests.client.house import ADMIN, House, open_house
from tests.pipeline.audit.planting import find, replace_body
from tests.relay.ops.test_prune import archived

READER = NodeKey(b"r" * 32)


async def live(house: House, round_: str) -> None:
    """Send, receive, confirm, and take a lock: a little of everything."""
    async with house.client() as sender:
        for number in range(5):
            await sender.send(READER.node, f"{round_} {number}")
        await receive(house, 5)
        async with sender.lock("db/main", lease_s=30):
            await sender.publish("current", kind=10_002)


async def receive(house: House, count: int) -> None:
    """Read and confirm some messages."""
    async with house.client(READER) as reader, await reader.receive() as mailbox:
        for _ in range(count):
            async with asyncio.timeout(30):
                await mailbox.confirm(await anext(mailbox))


async def restored(folder: Path) -> tuple[Path, Path]:
    """Return a relay's store as it was before a restore of an older backup, and as it is after some life since."""
    async with open_house(folder) as house:
        store, backup, before = house.settings.data_dir / "relay.db", folder / "backup.db", folder / "before.db"
        await live(house, "first")
        backup_relay(store, backup)
        await live(house, "lost")
        await house.down()
        backup_relay(store, before)
        restore_relay(backup, store, system_clock())
        await house.up()
        await live(house, "after")
    return before, store


def together(before: Histories, after: Histories) -> Histories:
    """Return both as a lake holds them that has read the store before and after the restore."""
    known = {epoch.epoch for epoch in before.epochs}
    return Histories(
        after.epochs,
        [*before.journal, *(row for row in after.journal if row.epoch not in known)],
        [*before.events, *(row for row in after.events if row.epoch not in known)],
    )


async def test_a_restored_relay_is_clean_with_and_without_what_it_lost(tmp_path: Path) -> None:
    before, after = await restored(tmp_path)
    assert audit_stores(after) == []
    lake = together(read_stores([before]), read_stores([after]))
    assert len(lake.epochs) == 2
    assert audit_histories(lake) == []


async def pruned(folder: Path) -> Path:
    """Return a relay's store that lacks its beginning, while something of it was still on its way."""
    async with open_house(folder) as house:
        await live(house, "first")
        async with house.client() as sender:
            await sender.send(READER.node, "waits over the pruning")
        assert house.server is not None
        core = house.server.context.engine
        head = (await core.store.extent()).head
        await core.prune(ADMIN.node, await archived(core, 1, head - 3))
        await receive(house, 1)
        await live(house, "after")
    return house.settings.data_dir / "relay.db"


async def test_a_pruned_relay_is_replayed_from_its_snapshot_and_clean(tmp_path: Path) -> None:
    store = await pruned(tmp_path)
    history = read_stores([store])
    assert history.journal[0].seq > 10
    assert audit_stores(store) == []


async def test_a_pruned_relay_whose_snapshot_was_edited_is_found(tmp_path: Path) -> None:
    history = read_stores([await pruned(tmp_path)])
    row = find(history, "journal.snapshot")
    state = json.loads(row.body)["state"]
    state["deliveries"]["rows"] = []
    codes = {finding.code for finding in audit_histories(replace_body(history, row, state=state))}
    assert {"delivery_unknown", "snapshot_disagrees"} <= codes


async def test_a_counter_of_a_snapshot_that_was_edited_is_found(tmp_path: Path) -> None:
    history = read_stores([await pruned(tmp_path)])
    row = find(history, "journal.snapshot")
    for name in ("open", "parked"):
        state = json.loads(row.body)["state"]
        counter = next(each for each in state["deliveries"]["counters"] if each["node"] == READER.node)
        counter[name] += 1
        found = audit_histories(replace_body(history, row, state=state))
        assert [(finding.code, finding.ref) for finding in found] == [("snapshot_disagrees", READER.node)], name


async def test_a_history_without_its_beginning_and_without_a_snapshot_is_found(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await live(house, "first")
    history = read_stores([house.settings.data_dir / "relay.db"])
    headless = history._replace(
        journal=[row for row in history.journal if row.seq > 5], events=[row for row in history.events if row.seq > 5]
    )
    assert {finding.code for finding in audit_histories(headless)} == {"history_headless"}


async def test_a_token_below_one_that_a_restore_has_lost_is_found(tmp_path: Path) -> None:
    before, after = await restored(tmp_path)
    lake = together(read_stores([before]), read_stores([after]))
    last = [row for row in lake.journal if row.type == "lock.acquired"][-1]
    lost = find(lake, "lock.acquired", skip=-2)
    assert (lost.epoch, last.epoch) == (lake.epochs[0].epoch, lake.epochs[1].epoch)
    planted = replace_body(lake, last, token=json.loads(lost.body)["token"])
    assert "token_not_growing" in {finding.code for finding in audit_histories(planted)}
