"""Keys that are rotated, recovered, replaced and revoked, as clients and admins of a running relay see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from posthouse.client import Client, Confirmed, Pins, Received, Subscription
from posthouse.client.key_chains import is_proven, sign_rotation
from posthouse.keys import NodeKey
from posthouse.model.event import KEY_ROTATION, RECOVERY_KEY, Coordinate, encode_event
from posthouse.model.rotation import proof_bytes, rotation_tags
from posthouse.relay.ops.maintenance import check_relay
from tests.client.house import QUICK
from tests.relay.edge import PATIENCE_S, Author, Edge, running
from tests.relay.meshes.people import People, read_one, rotate, successor_of
from tests.relay.meshes.refusal import refused
from tests.relay.webhooks.receivers import LOOPBACK


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running(tmp_path / "relay", sending=LOOPBACK) as started:
        yield started


@pytest.fixture
async def people(edge: Edge) -> AsyncIterator[People]:
    made = People(edge)
    await made.start()
    yield made
    await made.close()


async def test_rotation_moves_role_name_and_subscriptions_to_the_successor(people: People) -> None:
    bob = await people.member("bob", "admin")
    await bob.meshes.create_topic("team", "builds")
    await bob.meshes.subscribe("team", "builds")
    new = await rotate(people, bob)
    members = {member.name: member for member in await people.admin.meshes.unpinned_members("team")}
    assert (members["bob"].node, members["bob"].role) == (new.key.node, "admin")
    assert await new.meshes.subscriptions("team") == ["builds"]
    await new.meshes.remove_topic("team", "builds")


async def test_access_invites_and_webhooks_of_a_key_belong_to_its_successor(people: People) -> None:
    bob, guest = await people.member("bob", "admin"), people.client(NodeKey.generate())
    await people.admin.meshes.set_access("team", bob.key.node, lock="deny")
    invite = await bob.meshes.invite("team")
    hook = (await bob.webhooks.add("team", "http://127.0.0.1:9/bob")).webhook
    new = await rotate(people, bob)
    rows = await people.admin.meshes.access("team")
    assert [(row.node, row.lock) for row in rows] == [(new.key.node, "deny")]
    with refused("right_missing"):
        await new.locks.acquire("db/main", lease_ms=60_000)
    assert [one.creator for one in await new.meshes.invites("team")] == [new.key.node]
    await guest.meshes.redeem(invite, "guest")
    assert "guest" in {member.name for member in await new.meshes.unpinned_members("team")}
    found = await new.webhooks.get(hook.id)
    assert (found.webhook.id, found.webhook.creator) == (hook.id, new.key.node)
    await new.webhooks.remove(hook.id)


async def test_waiting_mail_reaches_the_successor_which_opens_it_with_the_old_key(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    await carol.send("bob", "before")
    new = await rotate(people, bob)
    delivery = await read_one(new)
    assert (delivery.body, delivery.sender) == ("before", carol.key.node)


async def test_mail_to_the_old_key_after_the_rotation_reaches_the_successor(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    late = await carol.compose("bob", "sealed for the old key")
    new = await rotate(people, bob)
    sent = await carol.send_event(late)
    assert (await read_one(new)).body == "sealed for the old key"
    states = await carol.message(sent.id)
    assert [(one.recipient, one.state) for one in states.deliveries] == [(new.key.node, "confirmed")]


async def test_sender_that_rotated_learns_that_its_earlier_message_was_confirmed(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    sent = await carol.send("bob", "who confirms me?")
    new = await rotate(people, carol)
    confirmed: asyncio.Queue[str] = asyncio.Queue()

    def note(items: Sequence[Confirmed]) -> None:
        for one in items:
            confirmed.put_nowait(one.id)

    async with await new.receive(on_confirmed=note):
        await read_one(bob)
        async with asyncio.timeout(PATIENCE_S):
            assert await confirmed.get() == sent.id


async def test_dedupe_records_move_so_a_retry_under_the_new_key_is_a_duplicate(people: People) -> None:
    carol = await people.member("carol")
    await carol.meshes.create_topic("team", "builds")
    first = await carol.send("#builds", "green", client_message_id="build-1")
    new = await rotate(people, carol)
    again = await new.send("#builds", "green", client_message_id="build-1")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_old_key_can_do_nothing_after_the_rotation(people: People) -> None:
    edge, bob = people.edge, Author()
    await people.admin.meshes.add_member("team", bob.node, "bob")
    token, prepared = await edge.token(bob), bob.event(1, "written before", [("mesh", "team")])
    async with edge.stream(bob) as stream:
        await people.client(bob.key).keys.rotate(NodeKey.generate())
        assert await stream.notice() == "key_rotated"
        assert (await stream.receive())[0] == "END"
    assert (await edge.get("/v1/meshes", token)).code == "key_rotated"
    assert (await edge.post("/v1/events", prepared)).code == "key_rotated"
    given = (await edge.post("/v1/auth/challenge", {"pubkey": bob.node})).value
    proof = bob.proof(given["relay"], ("challenge", given["challenge"]))
    assert (await edge.post("/v1/auth", {"event": proof})).code == "key_rotated"
    with refused("key_rotated"):
        await people.client(bob.key).connect()
    with refused("successor_in_use"):
        await people.admin.meshes.add_member("team", bob.node, "bob-again")


async def test_open_event_stream_of_the_old_key_ends(people: People) -> None:
    edge, bob = people.edge, Author()
    await people.admin.meshes.add_member("team", bob.node, "bob")
    headers = {"Authorization": f"Bearer {await edge.token(bob)}"}
    async with edge.session.get(f"{edge.url}/v1/events/stream?format=ndjson&mesh=team", headers=headers) as stream:
        assert b'"eose"' in await stream.content.readline()
        await people.client(bob.key).keys.rotate(NodeKey.generate())
        async with asyncio.timeout(PATIENCE_S):
            assert b"key_rotated" in await stream.content.readline()


async def test_first_rotation_counts_and_the_same_one_again_gets_the_same_answer(people: People) -> None:
    bob = await people.member("bob")
    new = successor_of(bob.key)
    first = await bob.keys.rotate(new)
    again = await people.client(bob.key).keys.rotate(new)
    assert (again.successor, again.at_ns) == (first.successor, first.at_ns)
    event = sign_rotation(bob.key, bob.key.node, NodeKey.generate(), 1)
    reply = await people.edge.send("POST", "/v1/keys/rotations", data=b'{"event":%b}' % encode_event(event))
    assert (reply.status, reply.code) == (409, "already_rotated")
    assert (await people.admin.keys.chain(bob.key.node)).current == new.node


async def test_rotation_needs_a_proof_of_the_successor(people: People) -> None:
    bob, victim = await people.member("bob"), NodeKey.generate()
    foreign = bob.key.sign(proof_bytes(bob.key.node, victim.node)).hex()
    tags = rotation_tags(bob.key.node, victim.node, foreign, bob.key.node)
    event = bob.signer.sign(KEY_ROTATION, "", tags)
    reply = await people.edge.send("POST", "/v1/keys/rotations", data=b'{"event":%b}' % encode_event(event))
    assert reply.code == "signature_invalid"
    assert (await people.admin.keys.chain(bob.key.node)).current == bob.key.node


async def test_rotation_is_not_published_as_another_event(people: People) -> None:
    bob = await people.member("bob")
    rotation = sign_rotation(bob.key, bob.key.node, NodeKey.generate(), bob.sign(kind=1).created_at_ns)
    with refused("kind_reserved"):
        await bob.publish_event(rotation)


async def test_key_in_use_is_no_successor(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    with refused("successor_in_use"):
        await bob.keys.rotate(carol.key)
    assert {member.name for member in await bob.meshes.unpinned_members("team")} == {"boss", "bob", "carol"}


async def test_stranger_cannot_retire_keys(people: People) -> None:
    with refused("key_unknown"):
        await people.client(NodeKey.generate()).keys.rotate(NodeKey.generate())


async def test_coordinates_stay_under_the_old_key_and_lookups_follow_the_chain(people: People) -> None:
    bob = await people.member("bob")
    await bob.publish("v1", kind=30_500, tags=[("d", "plan")])
    old = Coordinate(30_500, bob.key.node, "plan")
    third = await rotate(people, await rotate(people, bob))
    newest = old._replace(pubkey=third.key.node)
    assert (await people.admin.address(newest)).event.content == "v1"
    await third.publish("v2", kind=30_500, tags=[("d", "plan")])
    assert (await people.admin.address(old)).event.content == "v2"
    assert [one.event.content for one in (await people.admin.history(old)).events] == ["v1"]


async def test_direct_messages_of_the_old_key_stay_readable_for_its_owner_and_for_no_other(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    sent = await carol.send("bob", "for bob")
    new = await rotate(people, bob)
    assert new.open((await new.get(sent.id)).event) == "for bob"
    with refused("event_unknown"):
        await people.admin.get(sent.id)


async def test_lock_is_not_moved_but_the_successor_may_release_it(people: People) -> None:
    bob = await people.member("bob")
    held = await bob.locks.acquire("db/main", lease_ms=60_000)
    new = await rotate(people, bob)
    with refused("held"):
        await new.locks.acquire("db/main", lease_ms=60_000)
    await new.locks.release("db/main", held.token)
    assert (await new.locks.acquire("db/main", lease_ms=60_000)).token > held.token


async def test_pin_follows_a_signed_rotation_and_the_user_is_told(people: People) -> None:
    bob, carol = await people.member("bob"), await people.member("carol")
    await carol.meshes.members("team")
    told: list[str] = []
    carol.meshes.on_rotated = lambda member: told.append(str(member))
    new = await rotate(people, bob)
    assert await carol.meshes.resolve("bob", "team") == new.key.node
    assert len(told) == 1 and bob.key.node in told[0] and new.key.node in told[0]
    await carol.meshes.members("team")
    assert len(told) == 1, "once"


async def test_lost_key_is_recovered_with_the_key_that_it_named(people: People) -> None:
    bob, carol, recovery = await people.member("bob"), await people.member("carol"), NodeKey.generate()
    await carol.meshes.members("team")
    await bob.publish(kind=RECOVERY_KEY, tags=[("recovery", recovery.node)])
    new, thief = NodeKey.generate(), NodeKey.generate()
    with refused("recovery_refused"):
        await people.client(thief).keys.recover(bob.key.node, new)
    change = await people.client(recovery).keys.recover(bob.key.node, new)
    assert (change.reason, change.actor) == ("recovered", recovery.node)
    assert await carol.meshes.resolve("bob", "team") == new.node, "bob's old key had named the recovery key"


async def test_replacement_by_an_admin_is_shown_as_such_and_pins_do_not_follow_it(people: People) -> None:
    bob, carol, new = await people.member("bob"), await people.member("carol"), NodeKey.generate()
    await carol.meshes.members("team")
    with refused("right_missing"):
        await carol.keys.replace(bob.key.node, new.node)
    await people.admin.keys.replace(bob.key.node, new.node)
    chain = await carol.keys.chain(bob.key.node)
    assert [(one.reason, one.actor, one.event) for one in chain.changes] == [("replaced", people.admin.key.node, None)]
    assert not is_proven(chain, bob.key.node, new.node)
    with refused("member_key_changed"):
        await carol.meshes.resolve("bob", "team")
    with refused("key_rotated"):
        await bob.meshes.readable()
    assert [mesh["name"] for mesh in await people.client(new).meshes.readable() if mesh["mesh"] == "team"] == ["bob"]


async def test_revoked_key_is_refused_at_once_and_its_connection_closed(people: People) -> None:
    edge, bob, carol = people.edge, Author(), await people.member("carol")
    await people.admin.meshes.add_member("team", bob.node, "bob")
    token = await edge.token(bob)
    with refused("right_missing"):
        await carol.keys.revoke(bob.node)
    async with edge.stream(bob) as stream:
        await people.admin.keys.revoke(bob.node)
        assert await stream.notice() == "key_revoked"
        assert (await stream.receive())[0] == "END"
    assert (await edge.get("/v1/meshes", token)).code == "key_revoked"
    assert (await edge.post("/v1/events", bob.event(1, "", [("mesh", "team")]))).code == "key_revoked"
    with refused("member_unknown"):
        await carol.send(bob.node, "are you there?")


async def test_what_a_revoked_key_signed_after_a_time_is_marked_when_read(people: People) -> None:
    edge, bob = people.edge, Author()
    await people.admin.meshes.add_member("team", bob.node, "bob")
    tags = [("mesh", "team")]
    honest = bob.event(1, "honest", tags)
    await edge.publish(honest)
    stolen = bob.event(1, "stolen", tags)
    await edge.publish(stolen, bob.event(1, "backdated", tags, at_ns=honest["created_at_ns"] - 1))
    await people.admin.keys.revoke(bob.node, stolen["created_at_ns"])
    page = await people.admin.query({"authors": [bob.node]})
    marks = {one.event.content: one.is_suspect for one in page.events}
    assert marks == {"honest": False, "stolen": True, "backdated": True}
    assert (await people.admin.get(stolen["id"])).is_suspect
    subscription = await people.admin.subscribe({"authors": [bob.node], "mesh": "team"})
    async with asyncio.timeout(PATIENCE_S):
        seen = {one.event.content: one.is_suspect for one in await _first(subscription, 3)}
    assert seen == marks


async def _first(subscription: Subscription, count: int) -> list[Received]:
    found: list[Received] = []
    async for each in subscription:
        found.append(each)
        if len(found) == count:
            break
    return found


async def test_revoked_key_can_be_replaced_and_keeps_its_marks(people: People) -> None:
    bob, new = await people.member("bob"), NodeKey.generate()
    stolen = bob.sign("stolen", kind=1)
    await bob.publish_event(stolen)
    await people.admin.keys.revoke(bob.key.node, 0)
    await people.admin.keys.replace(bob.key.node, new.node)
    members = {member.name: member.node for member in await people.admin.meshes.unpinned_members("team")}
    assert members["bob"] == new.node
    assert (await people.admin.get(stolen.id)).is_suspect


async def test_retired_keys_survive_a_restart(tmp_path: Path) -> None:
    old, new = NodeKey.generate(), NodeKey.generate()
    async with running(tmp_path / "relay") as edge:
        admin = Client(edge.url, edge.admin.key, pins=Pins(None), options=QUICK)
        await admin.meshes.add_member("main", old.node, "bob")
        async with Client(edge.url, old, pins=Pins(None), options=QUICK) as client:
            await client.keys.rotate(new)
        await admin.close()
    async with running(tmp_path / "relay") as edge, Client(edge.url, old, pins=Pins(None), options=QUICK) as client:
        with refused("key_rotated"):
            await client.meshes.readable()


@pytest.mark.sqlite
async def test_store_is_consistent_after_rotations_under_traffic(tmp_path: Path) -> None:
    async with running(tmp_path / "relay") as edge:
        people = People(edge)
        await people.start()
        bob, carol = await people.member("bob"), await people.member("carol")
        for number in range(5):
            await carol.send("bob", f"to bob {number}")
            await bob.send("carol", f"to carol {number}")
        await read_one(bob)
        new = await rotate(people, bob)
        await carol.send(bob.key.node, "late")
        await read_one(carol)
        await read_one(new)
        await people.admin.keys.revoke(carol.key.node)
        await people.close()
    assert check_relay(tmp_path / "relay" / "relay.db") == []
