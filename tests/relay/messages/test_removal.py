"""A member that is removed, or loses its right to read, is out at once: sessions, presence, subscriptions, states."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.relay.edge import Author, Edge
from tests.relay.messages.correspondents import direct, reading

MESH = "lab"
MEMBERS = f"/v1/meshes/{MESH}/members"


async def make_lab(edge: Edge, *members: Author) -> str:
    """Create a closed mesh with members; return the token of its admin."""
    token = await edge.token(edge.admin)
    assert (await edge.post("/v1/meshes", {"name": MESH}, token)).status == 201
    for number, member in enumerate(members):
        body = {"node": member.node, "name": f"member-{number + 2}", "role": "member"}
        assert (await edge.post(MEMBERS, body, token)).status == 200
    return token


async def remove(edge: Edge, token: str, node: str) -> None:
    assert (await edge.send("DELETE", f"{MEMBERS}?node={node}", token=token)).status == 200


async def deny(edge: Edge, token: str, node: str) -> None:
    body = {"node": node, "read": "deny"}
    assert (await edge.post(f"/v1/meshes/{MESH}/access", body, token)).status == 200


@pytest.mark.parametrize("shut_out", [remove, deny])
async def test_reader_session_of_a_removed_member_ends_and_the_mesh_sees_it_go(
    edge: Edge, alice: Author, bob: Author, shut_out: Callable[[Edge, str, str], Awaitable[None]]
) -> None:
    token = await make_lab(edge, alice, bob)
    async with reading(edge, alice, MESH) as box, reading(edge, bob, MESH) as gone:
        assert await box.next("PRESENCE") == [MESH, bob.node, "online"]
        await shut_out(edge, token, bob.node)
        assert await box.next("PRESENCE") == [MESH, bob.node, "offline"]
        assert await gone.next("END") == [1008]
        assert bob.node not in edge.server.context.engine.sessions.presence.online(MESH)


async def test_subscription_to_the_mesh_is_closed_and_one_to_all_meshes_goes_on(
    edge: Edge, alice: Author, bob: Author
) -> None:
    token = await make_lab(edge, alice, bob)
    async with edge.stream(bob) as stream:
        await stream.send("REQ", "lab", {}, {"mesh": MESH})
        await stream.until("EOSE")
        await stream.send("REQ", "all", {})
        await stream.until("EOSE")
        await remove(edge, token, bob.node)
        sub, problem, _cursor = await stream.expect("CLOSED")
        assert (sub, problem["code"]) == ("lab", "not_member")
        await edge.publish(alice.event(tags=[("mesh", MESH)]), alice.event(content="in main"))
        (_, event, *_rest) = await stream.expect("EVENT")
        assert event["content"] == "in main"


async def test_removed_sender_sees_the_states_of_its_messages_no_more(edge: Edge, alice: Author, bob: Author) -> None:
    token = await make_lab(edge, alice, bob)
    message = direct(bob, alice, "hello", None, ("mesh", MESH))
    await edge.publish(message)
    path, own = f"/v1/messages/{message['id']}", await edge.token(bob)
    assert (await edge.get(path, own)).status == 200
    await remove(edge, token, bob.node)
    assert (await edge.get(path, own)).code == "message_unknown"
    assert (await edge.get(path, token)).status == 200, "an admin sees them as before"


async def test_closing_a_mesh_ends_the_sessions_of_nodes_that_are_not_members(
    edge: Edge, alice: Author, bob: Author
) -> None:
    token = await make_lab(edge, alice)
    assert (await edge.post(f"/v1/meshes/{MESH}", {"open": True}, token)).status == 200
    async with reading(edge, alice, MESH) as box, reading(edge, bob, MESH) as gone:
        assert await box.next("PRESENCE") == [MESH, bob.node, "online"]
        assert (await edge.post(f"/v1/meshes/{MESH}", {"open": False}, token)).status == 200
        assert await gone.next("END") == [1008]
        assert await box.next("PRESENCE") == [MESH, bob.node, "offline"]
