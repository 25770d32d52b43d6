"""A message that became stale unread: the tools show that it came, and its text only to an agent that confirms."""

from __future__ import annotations

from posthouse.model.clock import format_utc
from posthouse.model.limits import SECOND_NS
from tests.client.house import House
from tests.daemon.test_clock import WrongClock
from tests.mcp.agents import stdio_agent
from tests.mcp.conftest import named


async def test_read_asks_an_agent_to_confirm_a_stale_message(house: House) -> None:
    clock = WrongClock()
    async with named(house, "alice", clock=clock) as alice:
        until = format_utc(clock.wall_ns() + 3_600 * SECOND_NS)
        await alice.send("mcp", "deploy 7", valid_until=until)
        await alice.acting_as("mcp").until_bodies(1)
        clock.ahead_s = 2 * 3_600
        async with stdio_agent(alice.settings.directory) as agent:
            [message] = (await agent.call("inbox"))["messages"]
            assert "text" not in message["untrusted"]
            assert message["notice"].startswith("stale since")
            refused = await agent.refused("read", id=message["id"])
            assert refused["code"] == "message_stale"
            assert "`confirm`" in refused["hint"]
            shown = await agent.call("read", id=message["id"], confirm=True)
            assert shown["untrusted"]["text"] == "deploy 7"
            assert (await agent.call("inbox"))["messages"] == []
