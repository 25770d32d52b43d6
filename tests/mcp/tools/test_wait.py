from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from posthouse.mcp import tool as call_module
from tests.client.waiting import until
from tests.daemon.hosts import Host, restart
from tests.mcp.agents import BOUND_S, MODES, WAYS, Way, agent_at, answer_of, stdio_agent


def sleepers(host: Host) -> int:
    """How many requests wait for mail at a daemon."""
    return host.daemon.context.waiters.count


@pytest.mark.parametrize("way", WAYS)
async def test_wait_returns_when_mail_comes(way: Way, alice: Host, bob: Host) -> None:
    async with agent_at(way, alice) as agent, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(agent.call("wait", seconds=50))
        await until(lambda: sleepers(alice) == 1)
        await bob.send("mcp@alice", "wake up")
        found = await waiting
        assert [message["untrusted"]["text"] for message in found["messages"]] == ["wake up"]


async def test_wait_returns_unread_messages_once_and_leaves_them_unread(alice: Host, bob: Host) -> None:
    await bob.send("mcp@alice", "one")
    await alice.acting_as("mcp").until_bodies(1)
    async with stdio_agent(alice.settings.directory) as agent:
        [message] = (await agent.call("wait", seconds=50))["messages"]
        assert (await agent.call("wait", seconds=0))["messages"] == []
        assert (await agent.call("inbox"))["messages"] == [message | {"age": ANY}]
        await agent.call("read", id=message["id"])
        assert (await agent.call("inbox"))["messages"] == []


async def test_wait_ends_without_mail_when_its_time_is_over(alice: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        assert await agent.call("wait", seconds=0.3) == {"messages": []}


async def test_wait_above_its_bound_is_refused_and_the_bound_is_a_setting(alice: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        refused = await agent.refused("wait", seconds=51)
        assert refused["code"] == "tool_arguments_invalid" and "50" in refused["message"]
    await restart(alice, tool_wait_max_s=2)
    async with stdio_agent(alice.settings.directory) as agent:
        assert "2" in (await agent.refused("wait", seconds=3))["message"]
        refused = await agent.refused("lock", action="acquire", resource="r", wait_s=3)
        assert refused["code"] == "tool_arguments_invalid"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_wait_ends_at_the_daemon_too(way: Way, mode: str, alice: Host) -> None:
    async with agent_at(way, alice, mode=mode) as agent:
        with anyio.fail_after(BOUND_S):
            async with anyio.create_task_group() as group:
                group.start_soon(agent.client.call_tool, "wait", {"seconds": 50})
                await until(lambda: sleepers(alice) == 1)
                group.cancel_scope.cancel()
        await until(lambda: sleepers(alice) == 0)
        assert (await agent.call("inbox"))["messages"] == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_waiting_call_reports_progress(way: Way, alice: Host, bob: Host) -> None:
    has_reported = asyncio.Event()
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        has_reported.set()

    async with agent_at(way, alice) as agent, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(agent.client.call_tool("wait", {"seconds": 50}, progress_callback=note))
        async with asyncio.timeout(BOUND_S):
            await has_reported.wait()
        await bob.send("mcp@alice", "enough")
        assert len(answer_of(await waiting)["messages"]) == 1
    progress, total, message = seen[0]
    assert 0 < progress <= 50 and total == 50 and message == "no mail yet"


def test_progress_comes_more_often_than_clients_lose_patience() -> None:
    assert call_module.PROGRESS_EVERY_S <= 10


async def test_wait_goes_on_over_a_restart_of_the_daemon(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(agent.call("wait", seconds=50))
        await until(lambda: sleepers(alice) == 1)
        await alice.down()
        await bob.send("mcp@alice", "while you were away")
        await alice.up()
        found: dict[str, Any] = await waiting
        assert [message["untrusted"]["text"] for message in found["messages"]] == ["while you were away"]


async def test_a_cancelled_wait_for_a_lock_leaves_it_to_others(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as north, stdio_agent(bob.settings.directory) as south:
        mine = await north.call("lock", action="acquire", resource="r", lease_s=600)
        wanted = {"action": "acquire", "resource": "r", "wait_s": 50}
        with anyio.fail_after(BOUND_S):
            async with anyio.create_task_group() as group:
                group.start_soon(south.client.call_tool, "lock", wanted)
                await until(lambda: sleepers(bob) == 1)
                group.cancel_scope.cancel()
        await until(lambda: sleepers(bob) == 0)
        await north.call("lock", action="release", resource="r", token=mine["token"])
        assert (await north.call("lock", action="acquire", resource="r", wait_s=20))["held"]


async def test_send_with_wait_s_answers_with_the_reply_which_is_no_mail_any_more(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(agent.call("send", to="bob", message="are you there?", wait_s=40))
        [asked] = (await bob.get("/v1/inbox", unread="true", wait_s=40))["items"]
        await bob.send("mcp@alice", "I am", reply_to_id=asked["message_id"])
        found = await sending
        assert (found["state"], found["reply"]["untrusted"]["text"]) == ("answered", "I am")
        assert asked["message_id"].startswith(found["id"])
        assert (await agent.call("inbox"))["messages"] == []


async def test_send_with_wait_s_refuses_in_words_of_the_tools_when_no_reply_can_come(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        late = await agent.refused("send", to="bob", message="are you there?", wait_s=0.3)
        assert (late["code"], "`wait_s`" in late["hint"]) == ("request_timeout", True)
        assert (await agent.refused("send", to="bob", message="?", wait_s=51))["code"] == "tool_arguments_invalid"
