"""The history of a relay whose members rotated and lost their keys is clean: deliveries go on under the successor."""

from __future__ import annotations

import asyncio
from pathlib import Path

from posthouse.client import Client
from posthouse.keys import NodeKey
from posthouse.pipeline.audit.stores import audit_stores
from tests.client.house import ADMIN, open_house


async def receive(client: Client, count: int) -> None:
    """Read and confirm some messages."""
    async with await client.receive() as mailbox:
        for _ in range(count):
            async with asyncio.timeout(30):
                await mailbox.confirm(await anext(mailbox))


async def test_audit_follows_deliveries_and_audiences_to_the_successor_of_a_key(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        admin, old, sender = house.client(ADMIN), house.client(), house.client()
        for client, name in ((old, "old"), (sender, "sender")):
            await admin.meshes.add_member("main", client.key.node, name)
        await sender.meshes.create_topic("main", "builds")
        await old.meshes.subscribe("main", "builds")
        for number in range(3):
            await sender.send(old.key.node, f"direct {number}")
            await sender.send("#builds", f"topic {number}")
        await receive(old, 2)
        new = NodeKey(NodeKey.generate().reveal_seed(), [old.key])
        await old.keys.rotate(new)
        await sender.send("#builds", "after")
        await sender.send(old.key.node, "redirected")
        await receive(house.client(new), 6)
        await admin.keys.revoke(new.node)
        await sender.send("#builds", "without the revoked reader")
        store = house.settings.data_dir / "relay.db"
    assert audit_stores(store) == []


async def test_audit_knows_that_a_key_which_waits_for_approval_is_sent_messages_for_later(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        admin, old, thief, sender = house.client(ADMIN), house.client(), house.client(), house.client()
        for client, name in ((old, "old"), (thief, "stolen"), (sender, "sender")):
            await admin.meshes.add_member("main", client.key.node, name)
        await sender.meshes.create_topic("main", "builds")
        for client in (old, thief):
            await client.meshes.subscribe("main", "builds")
        await admin.keys.require_approval("main", True)
        new, refused = NodeKey(NodeKey.generate().reveal_seed(), [old.key]), NodeKey.generate()
        await old.keys.rotate(new)
        await thief.keys.rotate(refused)
        await sender.send("#builds", "while they wait")
        await admin.keys.approve("main", new.node)
        await admin.keys.refuse("main", refused.node)
        await sender.send("#builds", "without the refused key")
        await receive(house.client(new), 2)
        store = house.settings.data_dir / "relay.db"
    assert audit_stores(store) == []
