"""After one side lost history: a restored relay gets again what it had answered, a rolled-back inbox is refilled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.daemon import reconcile
from posthouse.model.clock import SystemClock
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.client.house import House, open_house
from tests.client.waiting import PATIENCE_S, until
from tests.daemon.hosts import Host, eventually, host_at


def remove_inbox(host: Host) -> None:
    """Remove the inbox of a stopped host."""
    for file in host.mesh.inbox.store.path.parent.glob("inbox.db*"):
        file.unlink()


async def test_relay_restored_from_a_backup_gets_again_what_it_had_answered(
    house: House, alice: Host, bob: Host
) -> None:
    store, backup = house.settings.data_dir / FILE_NAME, house.folder / "backup.db"
    await alice.send(bob.node, "before", client_message_id="c1")
    assert await bob.until_bodies(1) == ["before"]
    await until(lambda: alice.mesh.reconciler.is_checked)
    backup_relay(store, backup)
    await bob.down()
    await alice.send(bob.node, "after", client_message_id="c2")
    await alice.until_status("c2", "done")
    await house.down()
    restore_relay(backup, store, SystemClock())
    await house.up()
    await bob.up()
    assert await bob.until_bodies(2) == ["before", "after"]
    for key in ("c1", "c2"):
        await alice.until_status(key, "done")
    assert len(await bob.bodies()) == 2


async def test_inbox_that_was_lost_is_refilled_from_the_history_of_the_relay(
    house: House, alice: Host, bob: Host
) -> None:
    for number in range(3):
        await alice.send(bob.node, str(number))
    await bob.until_bodies(3)
    await eventually(lambda: alice.get("/v1/outbox"), lambda said: said["items"][0]["status"] == "done")
    await confirmed(alice, 3)
    await bob.down()
    remove_inbox(bob)
    await bob.up()
    assert sorted(await bob.until_bodies(3)) == ["0", "1", "2"]
    await until(lambda: bob.mesh.reconciler.is_checked)
    assert len(await bob.bodies()) == 3


async def confirmed(sender: Host, count: int) -> None:
    """Wait until the readers of a host's newest messages have confirmed them."""
    rows = (await sender.get("/v1/outbox", limit=count))["items"]
    for row in rows:
        await eventually(
            lambda row=row: sender.mesh.uplink.client.message(row["message_id"]),  # type: ignore[misc]
            lambda states: all(each.state == "confirmed" for each in states.deliveries),
        )


async def test_inbox_that_was_rolled_back_gets_what_came_since(alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "old")
    await bob.until_bodies(1)
    await bob.down()
    kept = {file: file.read_bytes() for file in bob.mesh.inbox.store.path.parent.glob("inbox.db*")}
    await bob.up()
    await alice.send(bob.node, "new")
    await bob.until_bodies(2)
    await confirmed(alice, 2)
    await bob.down()
    remove_inbox(bob)
    for file, content in kept.items():
        file.write_bytes(content)
    await bob.up()
    assert await bob.until_bodies(2) == ["old", "new"]


async def test_topics_of_agents_are_refilled_too(alice: Host, bob: Host) -> None:
    client = alice.mesh.uplink.client
    await client.meshes.create_topic("main", "news")
    claude = await bob.add_agent("claude")
    assert (await claude.post("/v1/topic/subscribe", topic="news")).status == 200
    await eventually(
        lambda: bob.mesh.uplink.client.meshes.subscriptions("main"), lambda patterns: "news" in str(patterns)
    )
    await alice.send("#news", "headline")
    await claude.until_bodies(1)
    await confirmed(alice, 1)
    await bob.down()
    remove_inbox(bob)
    await bob.up()
    assert await bob.acting_as("claude").until_bodies(1) == ["headline"]


async def test_restart_without_a_loss_brings_nothing_twice(alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "kept")
    await bob.until_bodies(1)
    await confirmed(alice, 1)
    await bob.down()
    await bob.up()
    await until(lambda: bob.mesh.reconciler.is_checked)
    assert await bob.bodies() == ["kept"]


async def test_row_of_a_post_names_the_readers_that_were_left_out(tmp_path: Path) -> None:
    async with (
        open_house(tmp_path, deliveries=DeliverySettings(queue_max=1)) as house,
        host_at(house, "alice") as alice,
    ):
        reader = house.client()
        await reader.meshes.create_topic("main", "news")
        await reader.meshes.subscribe("main", "news")
        for key in ("c1", "c2"):
            await alice.send("#news", key, client_message_id=key)
            await alice.until_status(key, "done")
        rows = [await alice.row(key) for key in ("c1", "c2")]
        assert [row["not_queued"] for row in rows] == [[], [{"recipient": reader.key.node, "reason": "queue_full"}]]
        assert [row["state"] for row in rows] == ["sent", "not_queued"]
        assert (await alice.get("/v1/messages/c2"))["state"] == "not_queued"


async def test_connection_lost_in_the_middle_of_a_refill_is_followed_by_a_complete_one(
    house: House, alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await alice.send(bob.node, str(number))
    await bob.until_bodies(3)
    await eventually(lambda: alice.get("/v1/outbox"), lambda said: said["items"][0]["status"] == "done")
    await confirmed(alice, 3)
    await bob.down()
    remove_inbox(bob)
    began = asyncio.Event()

    async def hand_over_nothing(*_arguments: object) -> None:
        """Wait for confirmations that a lost connection never brings."""
        began.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(reconcile, "deliver_history", hand_over_nothing)
        await bob.up()
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
        await house.down()
        await until(lambda: not bob.mesh.uplink.is_up)
    await house.up()
    assert sorted(await bob.until_bodies(3)) == ["0", "1", "2"]
    await until(lambda: bob.mesh.reconciler.is_checked)
