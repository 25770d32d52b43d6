"""Who is there: the roster, and who comes and goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posthouse.relay.messages import presence
from tests.relay.edge import Author, Edge
from tests.relay.messages.correspondents import reading


async def test_roster_names_members_who_is_online_and_their_status(edge: Edge, alice: Author, bob: Author) -> None:
    body = {"node": alice.node, "name": "alice", "role": "member"}
    await edge.post("/v1/meshes/main/members", body, await edge.token(edge.admin))
    profile = alice.event(10002, json.dumps({"summary": "busy", "status": "working"}))
    await edge.publish(profile, bob.event(10002, "no json"))
    async with reading(edge, alice), reading(edge, bob) as box:
        assert box.roster == [
            {"node": edge.admin.node, "name": "admin", "role": "admin", "online": False, "status": None},
            {"node": alice.node, "name": "alice", "role": "member", "online": True, "status": "working"},
            {"node": bob.node, "name": None, "role": "member", "online": True, "status": None},
        ]


async def test_presence_tells_who_comes_and_goes(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    async with reading(edge, alice) as box:
        async with reading(edge, bob):
            assert await box.next("PRESENCE") == ["main", bob.node, "online"]
            async with edge.stream(carol):
                pass
        assert await box.next("PRESENCE") == ["main", bob.node, "offline"]
        assert all(command[2] != carol.node for command in box.other if command[0] == "PRESENCE")


async def test_replaced_mailbox_never_looks_offline(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    async with reading(edge, alice) as box, reading(edge, bob):
        assert await box.next("PRESENCE") == ["main", bob.node, "online"]
        async with reading(edge, bob), reading(edge, carol):
            assert await box.next("PRESENCE") == ["main", carol.node, "online"]
        gone = {(await box.next("PRESENCE"))[1] for _ in range(2)}
        assert gone == {bob.node, carol.node}


async def test_presence_stays_in_its_mesh(edge: Edge, alice: Author, bob: Author) -> None:
    await edge.post("/v1/meshes", {"name": "lab", "open": True}, await edge.token(edge.admin))
    async with reading(edge, alice, "lab") as box:
        async with reading(edge, bob):
            pass
        async with reading(edge, bob, "lab"):
            assert await box.next("PRESENCE") == ["lab", bob.node, "online"]
        assert box.other == []


def profile_of(author: Author, *agents: object, **members: object) -> dict[str, Any]:
    """Return a profile that lists agents."""
    return author.event(10002, json.dumps({**members, "agents": list(agents)}))


CLAUDE = {"name": "claude", "program": "claude-code", "summary": "reviews", "capabilities": ["python"]}


async def test_roster_shows_the_agents_of_profiles_and_which_are_online(edge: Edge, alice: Author, bob: Author) -> None:
    await edge.publish(profile_of(alice, CLAUDE, {"name": "codex", "retired": True, "project": "/x"}))
    async with reading(edge, alice, agents=["claude"]), reading(edge, bob) as box:
        (entry,) = (each for each in box.roster if each["node"] == alice.node)
    assert entry["agents"] == [CLAUDE, {"name": "codex", "retired": True}]
    assert entry["online_agents"] == ["claude"]


async def test_mesh_learns_which_agents_come_and_go(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, alice) as box:
        async with reading(edge, bob, agents=["codex", "claude"]) as other:
            assert await box.next("PRESENCE") == ["main", bob.node, "online", ["claude", "codex"]]
            await other.stream.send("AGENTS", "main", ["codex"])
            assert await box.next("PRESENCE") == ["main", bob.node, "online", ["codex"]]
            await other.stream.send("AGENTS", "main", [])
            assert await box.next("PRESENCE") == ["main", bob.node, "online"]
        assert await box.next("PRESENCE") == ["main", bob.node, "offline"]


async def test_mesh_learns_of_a_new_profile_and_not_of_an_older_one(edge: Edge, alice: Author, bob: Author) -> None:
    older, newer = profile_of(bob, CLAUDE), profile_of(bob, status="working")
    async with reading(edge, alice) as box:
        await edge.publish(newer)
        assert await box.next("PROFILE") == ["main", {"node": bob.node, "status": "working", "agents": []}]
        await edge.publish(older)
        assert not [command for command in await box.silence() if command[0] == "PROFILE"]


@pytest.mark.parametrize(
    "agents",
    [
        "claude",
        {},
        [1],
        [{}],
        [{"name": "Claude"}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": f"a{number}"} for number in range(65)],
        [{"name": "a", "summary": "x" * 201}],
        [{"name": "a", "capabilities": ["x"] * 17}],
        [{"name": "a", "retired": "yes"}],
    ],
)
async def test_profile_with_an_impossible_list_of_agents_is_refused(edge: Edge, alice: Author, agents: object) -> None:
    reply = await edge.post("/v1/events", alice.event(10002, json.dumps({"agents": agents})))
    assert (reply.status, reply.value["code"]) == (400, "profile_malformed")


@pytest.mark.parametrize("names", ["claude", ["Claude"], [1], [f"a{number}" for number in range(65)]])
async def test_agents_with_impossible_names_are_refused(edge: Edge, alice: Author, names: object) -> None:
    async with reading(edge, alice) as box:
        await box.stream.send("AGENTS", "main", names)
        assert (await box.next("NOTICE"))[0] in ("frame_malformed", "agent_name_invalid")


async def test_roster_that_would_be_too_large_leaves_agents_to_be_fetched(
    edge: Edge, alice: Author, bob: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "ROSTER_AGENTS_BYTES", 100)
    await edge.publish(profile_of(alice, CLAUDE, status="working"))
    async with reading(edge, alice), reading(edge, bob) as box:
        (entry,) = (each for each in box.roster if each["node"] == alice.node)
    assert entry["status"] == "working" and "agents" not in entry


async def test_relay_announces_agents_in_its_features(edge: Edge) -> None:
    assert (await edge.get("/v1/info")).value["features"]["agents"] == {"version": 1}
