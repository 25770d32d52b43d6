"""Who is there: the roster, and who comes and goes."""

from __future__ import annotations

import json

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
