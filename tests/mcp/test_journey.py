"""What agents do with each other, over both transports and both generations of the protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from posthouse.mcp.tool import META_NAMES
from posthouse.mcp.tools.reading import SHORT_ID_DIGITS, short_node
from posthouse.model.node import node_from_hex, node_hex
from tests.client.house import House
from tests.daemon.hosts import Host, host_at
from tests.mcp.agents import MODES, WAYS, Way, agent_at, answer_of, stdio_agent


def names(found: dict[str, Any]) -> set[str]:
    """Return the names that `who` shows."""
    return {each["name"] for each in found["agents"]}


def directory(host: Host) -> Path:
    return host.settings.directory


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_two_agents_find_each_other_and_exchange_messages(way: Way, mode: str, alice: Host, bob: Host) -> None:
    async with (
        agent_at(way, alice, mode=mode) as north,
        agent_at(way, bob, mode=mode) as south,
    ):
        seen = await north.until("who", lambda found: "mcp@bob" in names(found))
        assert seen["mesh"] == "main" and seen["connected"]
        assert seen["you"].endswith("@alice")
        assert {"name": "bob", "online": True} in seen["agents"]

        sent = await north.call("send", to="mcp@bob", message="are the horses ready?")
        assert sent["state"] in ("queued", "sent")
        [asked] = (await south.call("wait", seconds=30))["messages"]
        assert asked["id"] == sent["id"]
        assert (asked["from"], asked["untrusted"]) == ("mcp@alice", {"text": "are the horses ready?"})
        whole = await south.call("read", id=asked["id"])
        assert whole["untrusted"]["text"] == "are the horses ready?"
        assert (await south.call("inbox"))["messages"] == []

        await south.call("send", to=whole["from"], message="they are", reply_to=asked["id"])
        [answer] = (await north.call("wait", seconds=30))["messages"]
        assert answer["reply_to"] == asked["id"]
        assert (answer["from"], answer["untrusted"]) == ("mcp@bob", {"text": "they are"})
        done = await north.until("status", lambda found: found["state"] == "answered", id=sent["id"])
        assert [(each["node"], each["state"]) for each in done["recipients"]] == [(bob.node, "confirmed")]

        said = (await north.call("history", of="bob"))["messages"]
        assert [message["untrusted"]["text"] for message in said] == ["they are", "are the horses ready?"]
        assert [message["from"] for message in said] == ["mcp@bob", "mcp@alice"]


async def test_an_agent_that_is_renamed_goes_on_under_its_new_name(alice: Host, bob: Host) -> None:
    async with stdio_agent(directory(alice)) as north, stdio_agent(directory(bob)) as south:
        assert (await north.call("who"))["you"] == "mcp@alice"
        assert (await alice.post("/v1/agents/rename", name="mcp", to="postmaster")).status == 200
        assert (await north.call("who"))["you"] == "postmaster@alice"
        await south.until("who", lambda found: "postmaster@alice" in names(found))
        sent = await south.call("send", to="postmaster@alice", message="are you still there?")
        [asked] = (await north.call("wait", seconds=30))["messages"]
        assert asked["id"] == sent["id"]
        await north.call("send", to=asked["from"], message="yes", reply_to=asked["id"])
        [answer] = (await south.call("wait", seconds=30))["messages"]
        assert answer["from"] == "postmaster@alice"


@pytest.mark.parametrize("way", WAYS)
async def test_a_lock_goes_from_one_agent_to_the_other(way: Way, alice: Host, bob: Host) -> None:
    async with agent_at(way, alice) as north, agent_at(way, bob) as south:
        mine = await north.call("lock", action="acquire", resource="db/main", lease_s=600)
        assert mine["held"] and 0 < mine["valid_for_s"] <= 600
        refused = await south.refused("lock", action="acquire", resource="db/main")
        assert (refused["code"], refused["holder"]) == ("held", alice.node)
        kept = await north.call("lock", action="renew", resource="db/main", token=mine["token"], lease_s=600)
        assert kept["token"] == mine["token"]
        gone = await north.call("lock", action="release", resource="db/main", token=mine["token"])
        assert gone == {"resource": "db/main", "held": False, "token": mine["token"], "valid_for_s": 0}
        theirs = await south.call("lock", action="acquire", resource="db/main", wait_s=20)
        assert theirs["token"] > mine["token"]
        late = await north.refused("lock", action="renew", resource="db/main", token=mine["token"])
        assert late["code"] in ("not_holder", "stale_token")


async def test_the_same_key_acquires_a_lock_once(alice: Host) -> None:
    wanted = {"action": "acquire", "resource": "db/main", "lease_s": 600}
    async with stdio_agent(directory(alice)) as agent:
        meta: Any = {META_NAMES[0]: "take-1"}
        first, again = [answer_of(await agent.client.call_tool("lock", wanted, meta=meta)) for _ in range(2)]
        assert again["token"] == first["token"]
        refused = await agent.refused("lock", **wanted)
        assert refused["code"] in ("held", "held_by_self")


async def test_second_agent_of_a_daemon_waits_for_the_lock_of_the_first(alice: Host) -> None:
    async with stdio_agent(directory(alice)) as one, stdio_agent(directory(alice), "--as", "other") as two:
        first = await one.call("lock", action="acquire", resource="db/main")
        waiting = asyncio.create_task(two.call("lock", action="acquire", resource="db/main", wait_s=30))
        await one.call("lock", action="release", resource="db/main", token=first["token"])
        assert (await waiting)["token"] > first["token"]


async def test_mail_waits_while_the_relay_is_away_and_arrives_when_it_is_back(
    house: House, alice: Host, bob: Host
) -> None:
    async with stdio_agent(directory(alice)) as north, stdio_agent(directory(bob)) as south:
        await north.until("who", lambda found: "mcp@bob" in names(found))
        await north.call("send", to="mcp@bob", message="before")
        await south.until("inbox", lambda found: len(found["messages"]) == 1)
        await house.down()
        sent = await north.call("send", to="mcp@bob", message="while it is away")
        assert sent["state"] == "queued"
        status = await north.call("status", id=sent["id"])
        assert status["state"] == "queued" and "recipients" not in status
        unreachable = await north.refused("lock", action="acquire", resource="db/main")
        assert unreachable["code"] == "relay_unreachable"
        await north.until("who", lambda found: not found["connected"])
        await house.up()
        await south.until("inbox", lambda found: len(found["messages"]) == 2)
        await north.until("status", lambda found: found["state"] == "confirmed", id=sent["id"])
        assert (await north.call("lock", action="acquire", resource="db/main"))["held"]


async def test_a_topic_reaches_its_subscribers_and_reports_when_there_are_none(alice: Host, bob: Host) -> None:
    async with stdio_agent(directory(alice)) as north, stdio_agent(directory(bob)) as south:
        await north.call("topic", action="create", topic="#ops")
        assert "#ops" in (await north.call("who"))["topics"]
        alone = await north.call("send", to="#ops", message="anybody?")
        status = await north.until("status", lambda found: found["state"] == "sent", id=alone["id"])
        assert status["recipients"] == []
        assert await south.call("topic", action="follow", topic="#ops") == {"topic": "#ops", "following": True}
        await north.call("send", to="#ops", message="now somebody")
        [message] = (await south.call("wait", seconds=30))["messages"]
        assert (message["topic"], message["untrusted"]["text"]) == ("#ops", "now somebody")
        said = (await south.call("history", of="#ops"))["messages"]
        assert [each["untrusted"]["text"] for each in said] == ["now somebody", "anybody?"]


async def test_who_shows_what_each_agent_is_good_for_as_its_own_words(alice: Host, bob: Host) -> None:
    await bob.add_agent("tester", summary="runs the tests", capabilities=["pytest"])
    async with stdio_agent(directory(alice)) as agent:
        seen = await agent.until("who", lambda found: "tester@bob" in names(found))
        [tester] = [each for each in seen["agents"] if each["name"] == "tester@bob"]
        assert tester["untrusted"] == {"summary": "runs the tests", "capabilities": ["pytest"]}


async def test_who_shows_a_host_without_a_name_by_a_short_address_that_send_accepts(house: House, alice: Host) -> None:
    async with host_at(house, "carol") as carol, stdio_agent(directory(alice)) as agent:
        tester = await carol.add_agent("tester")
        short = node_hex(carol.node)[:SHORT_ID_DIGITS]
        seen = await agent.until("who", lambda found: f"tester@{short}" in names(found))
        assert short in names(seen)
        await agent.call("send", to=f"tester@{short}", message="hello")
        assert await tester.until_bodies(1) == ["hello"]


def test_two_hosts_without_a_name_are_shown_by_as_many_digits_as_tell_them_apart() -> None:
    nodes = [node_from_hex(f"{'ab' * 7}{digit * 50}") for digit in "12"]
    assert [short_node(node, nodes) for node in nodes] == [f"{'ab' * 7}1", f"{'ab' * 7}2"]
    assert short_node(nodes[0], nodes[:1]) == "ab" * 5


async def test_files_that_one_agent_has_reserved_are_refused_to_the_other(alice: Host) -> None:
    async with stdio_agent(directory(alice), "--as", "one") as one, stdio_agent(directory(alice), "--as", "two") as two:
        mine = await one.call("reserve", action="reserve", paths=["src/api"], minutes=5, note="refactor")
        path = str(Path.cwd() / "src/api")
        assert [(each["path"], each["by"], each["note"]) for each in mine["reserved"]] == [(path, "one", "refactor")]
        refused = await two.refused("reserve", action="reserve", paths=[f"{path}/user.py", "docs"])
        assert refused["code"] == "reservation_conflict" and "`send` to one" in refused["hint"]
        assert len((await two.call("reserve", action="list"))["reserved"]) == 1
        assert (await one.call("reserve", action="release"))["reserved"] == []
        assert len((await two.call("reserve", action="reserve", paths=[f"{path}/user.py", "docs"]))["reserved"]) == 2


async def test_history_shows_the_thread_of_a_message(alice: Host) -> None:
    async with stdio_agent(directory(alice), "--as", "one") as one, stdio_agent(directory(alice), "--as", "two") as two:
        asked = await one.call("send", to="two", message="are the horses ready?")
        await one.call("send", to="two", message="something else")
        [question, _] = (await two.until("inbox", lambda found: len(found["messages"]) == 2))["messages"]
        assert question["id"] == asked["id"]
        await two.call("send", to=question["from"], message="they are", reply_to=question["id"])
        await one.call("wait", seconds=30)
        for agent in (one, two):
            thread = await agent.call("history", of=asked["id"])
            assert [each["untrusted"]["text"] for each in thread["messages"]] == ["they are", "are the horses ready?"]
            assert thread["messages"][0]["reply_to"] == asked["id"]
