from __future__ import annotations

from typing import Any

import pytest
from mcp_types import RequestParamsMeta

from posthouse.mcp.tool import META_NAMES, meta_key
from posthouse.model.errors import PosthouseError
from tests.daemon.hosts import Host
from tests.mcp.agents import WAYS, Agent, Way, agent_at, answer_of, http_agent, stdio_agent

MESSAGE = {"to": "bob", "message": "exactly this once"}


async def with_meta(agent: Agent, name: str, key: Any) -> dict[str, Any]:
    meta: RequestParamsMeta = {name: key}  # type: ignore[misc]  # an open map
    return answer_of(await agent.client.call_tool("send", MESSAGE, meta=meta))


@pytest.mark.parametrize("way", WAYS)
async def test_a_repeated_call_with_the_same_key_sends_once(way: Way, alice: Host, bob: Host) -> None:
    async with agent_at(way, alice) as agent:
        first = await agent.call("send", **MESSAGE, idempotency_key="horses-1")
        await alice.until_status("horses-1", "done")
        second = await agent.call("send", **MESSAGE, idempotency_key="horses-1")
        assert second["id"] == first["id"]
        assert second["duplicate"] and second["state"] == "sent"
        await agent.call("send", to="bob", message="another one")
    assert await bob.until_bodies(2) == ["exactly this once", "another one"]


@pytest.mark.parametrize("way", WAYS)
async def test_the_same_key_sends_once_over_a_restart_of_the_server(way: Way, alice: Host, bob: Host) -> None:
    ids = []
    for _ in range(2):
        async with agent_at(way, alice) as agent:
            ids.append((await agent.call("send", **MESSAGE, idempotency_key="horses-1"))["id"])
    assert ids[0] == ids[1]
    await alice.send("bob", "the end")
    assert await bob.until_bodies(2) == ["exactly this once", "the end"]


async def test_the_same_key_sends_once_over_a_restart_of_the_daemon(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        first = await agent.call("send", **MESSAGE, idempotency_key="horses-1")
        await alice.down()
        assert (await agent.refused("send", **MESSAGE, idempotency_key="horses-1"))["code"] == "daemon_unreachable"
        await alice.up()
        assert (await agent.call("send", **MESSAGE, idempotency_key="horses-1"))["id"] == first["id"]
    await alice.send("bob", "the end")
    assert await bob.until_bodies(2) == ["exactly this once", "the end"]


@pytest.mark.parametrize("name", META_NAMES)
async def test_a_key_in_meta_counts_as_one(name: str, alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        first = await with_meta(agent, name, "toolu_01")
        assert (await agent.call("status", id="toolu_01"))["id"] == first["id"]
        assert (await with_meta(agent, name, "toolu_01"))["id"] == first["id"]
        assert (await with_meta(agent, name, "toolu_02"))["id"] != first["id"]
    assert await bob.until_bodies(2) == ["exactly this once"] * 2


async def test_a_key_in_meta_works_over_http_too(alice: Host, bob: Host) -> None:
    ids = set()
    for _ in range(2):
        async with http_agent(alice) as agent:
            ids.add((await with_meta(agent, META_NAMES[0], "toolu_01"))["id"])
    assert len(ids) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_without_a_key_every_call_is_a_message(way: Way, alice: Host, bob: Host) -> None:
    async with agent_at(way, alice) as agent:
        first = await agent.call("send", **MESSAGE)
        second = await agent.call("send", **MESSAGE)
        assert first["id"] != second["id"]
    assert await bob.until_bodies(2) == ["exactly this once"] * 2


async def test_the_same_key_for_another_message_is_refused(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        await agent.call("send", **MESSAGE, idempotency_key="horses-1")
        refused = await agent.refused("send", to="bob", message="something else", idempotency_key="horses-1")
        assert refused["code"] == "idempotency_key_reused"
        assert refused["conflict"].endswith("fingerprint_mismatch")


async def test_a_message_is_found_by_a_key_with_slashes(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        sent = await agent.call("send", **MESSAGE, idempotency_key="../build/7?x#y %2F")
        assert (await agent.call("status", id="../build/7?x#y %2F"))["id"] == sent["id"]


def test_the_argument_goes_before_meta_and_our_name_before_that_of_others() -> None:
    assert meta_key({}) is None
    assert meta_key({"progressToken": 7}) is None
    assert meta_key({META_NAMES[1]: "theirs", META_NAMES[0]: "ours"}) == "ours"
    assert meta_key({META_NAMES[1]: 17}) == "17"


def test_a_key_in_meta_that_is_no_id_is_refused_rather_than_ignored() -> None:
    for bad in ("", "a\nb", "x" * 256):
        with pytest.raises(PosthouseError) as refused:
            meta_key({META_NAMES[0]: bad})
        assert refused.value.code == "id_invalid"
