"""Usage of a message over MCP: from a program that knows it, without a tool or an argument that models pay for."""

from __future__ import annotations

import json
from typing import Any

from posthouse.mcp.tool import META_USAGE
from tests.daemon.hosts import Host
from tests.mcp.agents import answer_of, stdio_agent

USAGE = {"model": "granite", "input_tokens": 900, "output_tokens": 40, "cached_tokens": 700}


async def test_usage_arrives_from_meta_and_from_an_unlisted_argument(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        meta: Any = {META_USAGE: USAGE}
        answer_of(await agent.client.call_tool("send", {"to": "bob", "message": "one"}, meta=meta))
        await agent.call("send", to="bob", message="two", usage={"model": "heron", "outputTokens": 3})
        refused = await agent.refused("send", to="bob", message="three", usage={"model": "heron", "tokens": 3})
        assert refused["code"] == "value_invalid"
        assert "usage" not in json.dumps([tool.model_dump() for tool in (await agent.client.list_tools()).tools])
    assert await bob.until_bodies(2) == ["one", "two"]
    items = (await bob.get("/v1/inbox", limit=10))["items"]
    assert [item["meta"] for item in reversed(items)] == [
        {"usage": USAGE},
        {"usage": {"model": "heron", "input_tokens": 0, "output_tokens": 3}},
    ]
