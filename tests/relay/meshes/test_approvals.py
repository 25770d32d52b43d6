"""New keys that wait for an admin of the mesh: what their owner, other members, admins and a thief see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from posthouse.client import Client, Pins
from posthouse.keys import NodeKey
from posthouse.model.event import RECOVERY_KEY
from posthouse.relay.ops.maintenance import check_relay
from tests.client.house import QUICK
from tests.relay.edge import PATIENCE_S, Edge, running
from tests.relay.meshes.people import People, read_one, rotate, successor_of
from tests.relay.meshes.refusal import refused


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running(tmp_path / "relay") as started:
        yield started


@pytest.fixture
async def people(edge: Edge) -> AsyncIterator[People]:
    """A mesh whose admin approves new keys."""
    made = People(edge)
    await made.start()
    await made.admin.keys.require_approval("team", True)
    yield made
    await made.close()


async def waiting(people: People) -> list[tuple[str, str, str]]:
    """Return name, new key and former key of the members that wait."""
    return [(each.name, each.node, each.former) for each in (await people.admin.keys.held("team")).waiting]


async def test_new_key_has_no_right_in_the_mesh_until_an_admin_approves_it(people: People) -> None:
    bob = await people.member("bob")
    new = await rotate(people, bob)
    assert await waiting(people) == [("bob", new.key.node, bob.key.node)]
    with refused("key_not_approved"):
        await new.publish("early", kind=1)
    with refused("key_not_approved"):
        await new.query({"mesh": "team"})
    with refused("key_not_approved"):
        await new.locks.acquire("db/main", lease_ms=60_000)
    with refused("key_not_approved"):
        await new.receive()
    assert (await people.admin.keys.approve("team", new.key.node)).waiting == []
    await new.publish("approved", kind=1)
    assert {member.name: member.node for member in await new.meshes.unpinned_members("team")}["bob"] == new.key.node


async def test_old_key_can_do_nothing_while_its_successor_waits(people: People) -> None:
    bob = await people.member("bob")
    await rotate(people, bob)
    with refused("key_rotated"):
        await people.client(bob.key).publish("late", kind=1)


async def test_mail_of_before_and_during_the_wait_reaches_the_approved_key(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    await carol.meshes.create_topic("team", "builds")
    await bob.meshes.subscribe("team", "builds")
    await carol.send("bob", "before")
    new = await rotate(people, bob)
    await carol.send("bob", "meanwhile")
    await carol.send("#builds", "to the topic")
    await people.admin.keys.approve("team", new.key.node)
    assert [(await read_one(new)).body for _ in range(3)] == ["before", "meanwhile", "to the topic"]


async def test_other_meshes_do_not_wait(people: People) -> None:
    bob = await people.member("bob")
    await people.admin.meshes.create("lab", name="boss")
    await people.admin.meshes.add_member("lab", bob.key.node, "bob")
    new = await rotate(people, bob)
    await new.publish("in the other mesh", kind=1, mesh="lab")
    with refused("key_not_approved"):
        await new.publish("here", kind=1)


async def test_recovered_and_replaced_keys_wait_too(people: People) -> None:
    bob, carol, recovery = await people.member("bob"), await people.member("carol"), NodeKey.generate()
    await bob.publish(kind=RECOVERY_KEY, tags=[("recovery", recovery.node)])
    recovered, replaced = NodeKey.generate(), NodeKey.generate()
    await people.client(recovery).keys.recover(bob.key.node, recovered)
    await people.admin.keys.replace(carol.key.node, replaced.node)
    assert [name for name, *_ in await waiting(people)] == ["bob", "carol"]


async def test_key_that_changes_again_while_it_waits_stays_held(people: People) -> None:
    bob = await people.member("bob")
    second = await rotate(people, bob)
    third = await rotate(people, second)
    assert await waiting(people) == [("bob", third.key.node, bob.key.node)]
    with refused("key_not_approved"):
        await third.publish("early", kind=1)
    with refused("rotation_not_waiting"):
        await people.admin.keys.approve("team", second.key.node)


async def test_refused_key_loses_its_place_and_cannot_come_back_when_the_mesh_opens(people: People) -> None:
    bob = await people.member("bob")
    thief = await rotate(people, bob)
    assert (await people.admin.keys.refuse("team", thief.key.node)).waiting == []
    assert [member.name for member in await people.admin.meshes.unpinned_members("team")] == ["boss"]
    with refused("not_member"):
        await thief.publish("I am bob", kind=1)
    await people.admin.meshes.set_open("team", True)
    with refused("right_missing"):
        await thief.publish("I am bob", kind=1)
    with refused("right_missing"):
        await thief.meshes.add_member("team", thief.key.node, "bob")


async def test_place_of_a_thief_is_given_to_the_owner_with_what_waits(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    await carol.send("bob", "for the owner")
    thief, owner = await rotate(people, bob), people.client(successor_of(bob.key))
    await people.admin.keys.replace(thief.key.node, owner.key.node)
    await people.admin.keys.approve("team", owner.key.node)
    assert (await read_one(owner)).body == "for the owner"
    with refused("key_rotated"):
        await thief.publish("I am bob", kind=1)


async def test_key_that_waits_cannot_leave_and_join_again_under_its_name(people: People) -> None:
    bob = await people.member("bob")
    thief = await rotate(people, bob)
    with refused("key_not_approved"):
        await thief.meshes.remove_member("team", thief.key.node)
    invite = await people.admin.meshes.invite("team")
    await thief.meshes.redeem(invite, "bob")
    with refused("key_not_approved"):
        await thief.publish("I am bob", kind=1)


async def test_only_admins_of_the_mesh_decide_and_no_admin_approves_itself(people: People) -> None:
    bob, carol = await people.member("bob", "admin"), await people.member("carol")
    new = await rotate(people, bob)
    for refusal, client in (("right_missing", carol), ("key_not_approved", new)):
        with refused(refusal):
            await client.keys.approve("team", new.key.node)
        with refused(refusal):
            await client.keys.refuse("team", new.key.node)
        with refused(refusal):
            await client.keys.require_approval("team", False)
        with refused(refusal):
            await client.keys.held("team")


async def test_last_admin_need_not_wait_and_the_one_who_can_approve_cannot_leave(people: People) -> None:
    bob = await people.member("bob", "admin")
    new_bob = await rotate(people, bob)
    with refused("last_admin"):
        await people.admin.meshes.remove_member("team", people.admin.key.node)
    boss = await rotate(people, people.admin)
    assert [each.node for each in (await boss.keys.held("team")).waiting] == [new_bob.key.node]
    await boss.keys.approve("team", new_bob.key.node)
    await new_bob.keys.held("team")


async def test_keys_that_wait_still_wait_after_the_demand_ends(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    new = await rotate(people, bob)
    assert not (await people.admin.keys.require_approval("team", False)).required
    with refused("key_not_approved"):
        await new.publish("early", kind=1)
    await (await rotate(people, carol)).publish("at once", kind=1)


async def test_subscription_of_a_key_that_waits_gets_nothing_of_the_mesh(people: People) -> None:
    new = await rotate(people, await people.member("bob"))
    subscription = await new.subscribe({"authors": [people.admin.key.node], "kinds": [1]})
    await people.admin.publish("hidden", kind=1)
    await people.admin.publish("in main", kind=1, mesh="main")
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(aiter(subscription))).event.content == "in main"


async def test_demand_and_waiting_keys_survive_a_restart(tmp_path: Path) -> None:
    old, new = NodeKey.generate(), NodeKey.generate()
    async with (
        running(tmp_path / "relay") as edge,
        Client(edge.url, edge.admin.key, pins=Pins(None), options=QUICK) as admin,
    ):
        await admin.keys.require_approval("main", True)
        await admin.meshes.add_member("main", old.node, "bob")
        async with Client(edge.url, old, pins=Pins(None), options=QUICK) as client:
            await client.keys.rotate(new)
    async with running(tmp_path / "relay") as edge, Client(edge.url, new, pins=Pins(None), options=QUICK) as client:
        with refused("key_not_approved"):
            await client.publish("early", kind=1)
        async with Client(edge.url, edge.admin.key, pins=Pins(None), options=QUICK) as admin:
            assert (await admin.keys.held("main")).required
            await admin.keys.approve("main", new.node)
        await client.publish("approved", kind=1)


async def test_deleted_mesh_has_no_keys_that_wait(people: People) -> None:
    await rotate(people, await people.member("bob"))
    await people.admin.meshes.delete("team")
    with refused("mesh_deleted"):
        await people.admin.keys.held("team")


@pytest.mark.sqlite
async def test_journal_and_tables_agree_about_held_keys(tmp_path: Path) -> None:
    async with running(tmp_path / "relay") as edge:
        people = People(edge)
        await people.start()
        await people.admin.keys.require_approval("team", True)
        clients = [await rotate(people, await people.member(name)) for name in ("bob", "carol", "dave", "erin")]
        await people.admin.keys.approve("team", clients[0].key.node)
        await people.admin.keys.refuse("team", clients[1].key.node)
        await rotate(people, clients[2])
        await people.admin.meshes.remove_member("team", clients[3].key.node)
        await people.admin.meshes.create("lab", name="boss")
        await people.admin.keys.require_approval("lab", True)
        await people.admin.meshes.delete("lab")
        await people.close()
    assert check_relay(tmp_path / "relay" / "relay.db") == []


@pytest.mark.sqlite
async def test_store_from_before_approvals_opens_and_keeps_its_members(tmp_path: Path) -> None:
    path = tmp_path / "relay" / "relay.db"
    async with running(tmp_path / "relay") as edge:
        people = People(edge)
        await people.start()
        boss, bob = people.admin, await people.member("bob")
        await people.close()
    before = apsw.Connection(str(path))
    before.execute("DROP TABLE event_ids; CREATE INDEX events_by_id ON events (substr(id, 1, 8))")
    before.execute("DROP TABLE held_keys; DROP TABLE index_state; ALTER TABLE meshes DROP COLUMN approves_keys")
    before.execute("UPDATE schema_versions SET version = 8 WHERE component = 'relay'")
    before.close()
    async with running(tmp_path / "relay") as edge:
        people = People(edge)
        people.admin = people.client(boss.key)
        assert not (await people.admin.keys.require_approval("team", True)).waiting
        new = await rotate(people, people.client(bob.key))
        assert await waiting(people) == [("bob", new.key.node, bob.key.node)]
        await people.close()
    assert check_relay(path) == []
