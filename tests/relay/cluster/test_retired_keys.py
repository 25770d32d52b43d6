"""A key that one relay of a cluster retires is refused by all of them at once."""

from __future__ import annotations

from typing import Any

from posthouse.client.key_chains import sign_rotation
from posthouse.keys import NodeKey
from posthouse.model.event import encode_event
from tests.relay.cluster.relays import eventually
from tests.relay.edge import Author, Edge
from tests.relay.messages.correspondents import direct, reading

MEMBERS = "/v1/meshes/main/members"


async def rotate(edge: Edge, author: Author, successor: NodeKey) -> dict[str, Any]:
    """Rotate the key of an author at one relay."""
    event = sign_rotation(author.key, author.node, successor, author.event()["created_at_ns"])
    reply = await edge.send("POST", "/v1/keys/rotations", data=b'{"event":%b}' % encode_event(event))
    assert reply.status == 200, reply.body
    return dict(reply.value)


def knows(edge: Edge, node: str) -> bool:
    return node in edge.server.context.engine.meshes.retired


async def test_rotation_at_one_relay_ends_connections_and_tokens_at_another(two: list[Edge]) -> None:
    first, second = two
    bob, token = Author(), await first.token(first.admin)
    await first.post(MEMBERS, {"node": bob.node, "name": "bob"}, token)
    await eventually(lambda: second.server.context.engine.meshes.has_member(bob.node))
    bobs = await second.token(bob)
    async with second.stream(bob) as stream:
        await rotate(first, bob, NodeKey.generate())
        assert await stream.notice() == "key_rotated"
        assert (await stream.receive())[0] == "END"
    assert (await second.get("/v1/meshes", bobs)).code == "key_rotated"
    assert (await second.post("/v1/events", bob.event())).code == "key_rotated"


async def test_second_rotation_at_another_relay_is_refused(two: list[Edge]) -> None:
    bob = Author()
    await two[0].post(MEMBERS, {"node": bob.node, "name": "bob"}, await two[0].token(two[0].admin))
    await rotate(two[0], bob, NodeKey.generate())
    event = sign_rotation(bob.key, bob.node, NodeKey.generate(), bob.event()["created_at_ns"])
    reply = await two[1].send("POST", "/v1/keys/rotations", data=b'{"event":%b}' % encode_event(event))
    assert (reply.status, reply.code) == (409, "already_rotated")


async def test_revocation_at_one_relay_holds_at_another(two: list[Edge]) -> None:
    first, second = two
    bob, token = Author(), await first.token(first.admin)
    await first.post(MEMBERS, {"node": bob.node, "name": "bob"}, token)
    async with second.stream(bob) as stream:
        assert (await first.post("/v1/keys/revocations", {"node": bob.node}, token)).status == 200
        assert await stream.notice() == "key_revoked"
    assert (await second.post("/v1/events", bob.event())).code == "key_revoked"


async def test_successor_reads_at_another_relay_what_waited_for_the_old_key(two: list[Edge]) -> None:
    first, second = two
    bob, carol, token = Author(), Author(), await first.token(first.admin)
    for author, name in ((bob, "bob"), (carol, "carol")):
        await first.post(MEMBERS, {"node": author.node, "name": name}, token)
    message = direct(carol, bob, "waits")
    assert (await first.post("/v1/events", message)).status == 201
    new = Author()
    await rotate(first, bob, new.key)
    await eventually(lambda: knows(second, bob.node))
    async with reading(second, new) as mailbox:
        assert await mailbox.bodies(1) == ["waits"]


async def test_new_key_waits_at_every_relay_until_one_of_them_is_told_to_approve_it(two: list[Edge]) -> None:
    first, second = two
    bob, new, token = Author(), Author(), await first.token(first.admin)
    await first.post(MEMBERS, {"node": bob.node, "name": "bob"}, token)
    assert (await first.post("/v1/meshes/main/rotations/approval", {"required": True}, token)).status == 200
    await eventually(lambda: second.server.context.engine.meshes.find("main").row.approves_keys)
    await rotate(second, bob, new.key)
    await eventually(lambda: knows(first, bob.node))
    for edge in two:
        assert (await edge.post("/v1/events", new.event())).code == "key_not_approved"
    decision = {"node": new.node, "decision": "approve"}
    assert (await first.post("/v1/meshes/main/rotations", decision, token)).status == 200
    await eventually(lambda: not second.server.context.engine.meshes.find("main").held)
    assert (await second.post("/v1/events", new.event())).status == 201
