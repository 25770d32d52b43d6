"""An answer inherits what is left of the budget of the message it answers; only the answer to an answer is charged."""

from __future__ import annotations

import asyncio

from posthouse.model.budget import MeshBudget
from tests.client.house import House
from tests.daemon.hosts import Host
from tests.mcp.agents import BOUND_S, stdio_agent

FAR = 4_000_000_000_000  # unix milliseconds


async def hand(house: House, host: Host, budget: MeshBudget) -> tuple[str, str]:
    """Send a message with a budget to a host, as a member on another machine; return its id and its sender."""
    stranger = house.client()
    sent = await stranger.send(host.node, "answer me", mesh="main", budget=budget, to_agent="mcp")
    await host.acting_as("mcp").until_bodies(1)
    return sent.id, stranger.key.node


async def travelling(host: Host, message_id: str) -> MeshBudget:
    """Return the budget with which a message came."""
    found = await host.mesh.inbox.find_cause((await host.mesh.inbox.find(message_id, "mcp")).message_id)
    assert found is not None and found[1] is not None
    return found[1]


async def test_an_answer_is_sent_although_the_question_has_used_up_its_budget(house: House, alice: Host) -> None:
    spent = MeshBudget(hop_count=5, max_hops=5, call_budget_remaining=10, ttl=FAR)
    asked, stranger = await hand(house, alice, spent)
    async with stdio_agent(alice.settings.directory) as agent:
        await agent.call("send", to=stranger, message="the answer", reply_to=asked)


async def test_an_answer_to_an_answer_that_has_used_up_its_budget_is_refused(house: House, alice: Host) -> None:
    spent = MeshBudget(hop_count=5, max_hops=5, call_budget_remaining=10, ttl=FAR, is_return=True)
    asked, stranger = await hand(house, alice, spent)
    async with stdio_agent(alice.settings.directory) as agent:
        refused = await agent.refused("send", to=stranger, message="x", reply_to=asked)
        assert refused["code"] == "budget_exceeded" and "max hops" in refused["message"]
        await agent.call("send", to=stranger, message="a new conversation")


async def test_a_dialogue_of_agents_uses_up_one_budget(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as north, stdio_agent(bob.settings.directory) as south:
        await north.call("send", to="mcp@bob", message="first")
        left: list[int] = []
        for agent, host in ((south, bob), (north, alice), (south, bob)):
            [message] = (await agent.call("wait", seconds=30))["messages"]
            if "reply_to" in message:
                left.append((await travelling(host, message["id"])).call_budget_remaining)
            await agent.call("read", id=message["id"])
            await agent.call("send", to=message["from"], message="and again", reply_to=message["id"])
        async with asyncio.timeout(BOUND_S):
            [last] = (await north.call("wait", seconds=30))["messages"]
        budget = await travelling(alice, last["id"])
    assert left == [99, 98]
    assert (budget.hop_count, budget.call_budget_remaining, budget.is_return) == (2, 98, True)
