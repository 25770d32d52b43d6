"""Refusals that an agent gets from every tool: code, message and hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS

from posthouse.mcp.server import TOOLS
from posthouse.model.errors import ERROR_CODES
from tests.daemon.hosts import Host
from tests.mcp.agents import MODES, stdio_agent

ID = "f" * 64
#: arguments that are right
GOOD: dict[str, dict[str, Any]] = {
    "send": {"to": "bob", "message": "hello"},
    "inbox": {},
    "wait": {"seconds": 5},
    "read": {"id": ID},
    "who": {},
    "history": {"of": "bob"},
    "topic": {"action": "follow", "topic": "ops"},
    "lock": {"action": "acquire", "resource": "r"},
    "reserve": {"action": "list"},
    "status": {"id": ID},
}
#: arguments that the schema forbids
BAD: dict[str, list[dict[str, Any]]] = {
    "send": [{}, {"to": "bob"}, {"message": "x"}, {"to": 7, "message": "x"}, {"to": "bob", "message": ["x"]}],
    "inbox": [{"unread": False}, {"limit": 5}],
    "wait": [{}, {"seconds": -1}, {"seconds": 1e9}, {"seconds": "soon"}, {"seconds": 1, "for": "bob"}],
    "read": [{}, {"id": 7}, {"ids": [ID]}],
    "who": [{"name": "bob"}],
    "history": [{}, {"topic": "ops"}, {"of": {}}, {"of": "bob", "before": []}],
    "topic": [{}, {"action": "delete", "topic": "ops"}, {"action": "follow"}],
    "lock": [
        {},
        {"action": "acquire"},
        {"action": "steal", "resource": "r"},
        {"action": "acquire", "resource": "r", "lease_s": 0},
        {"action": "acquire", "resource": "r", "lease_s": 601},
        {"action": "acquire", "resource": "r", "wait_s": -1},
        {"action": "acquire", "resource": "r", "token": 1},
        {"action": "renew", "resource": "r"},
        {"action": "release", "resource": "r"},
        {"action": "release", "resource": "r", "token": "first"},
    ],
    "reserve": [{}, {"action": "keep"}, {"action": "reserve"}, {"action": "reserve", "paths": "src"}],
    "status": [{}, {"id": None}, {"id": ID, "verbose": True}],
}
#: arguments that only the daemon or the relay can judge, and what they say
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("send", {"to": "nobody", "message": "x"}, "member_name_unknown"),
    ("send", {"to": "nobody@bob", "message": "x"}, "recipient_agent_unknown"),
    ("send", {"to": "#nowhere", "message": "x"}, "topic_unknown"),
    ("send", {"to": "", "message": "x"}, "member_name_unknown"),
    ("send", {"to": "bob", "message": "x" * 50_000}, "body_too_large"),
    ("send", {"to": "bob", "message": " \n"}, "tool_arguments_invalid"),
    ("topic", {"action": "create", "topic": "no spaces"}, "topic_invalid"),
    ("send", {"to": "bob", "message": "x", "reply_to": "yesterday"}, "id_invalid"),
    ("send", {"to": "bob", "message": "x", "idempotency_key": "a\nb"}, "id_invalid"),
    ("send", {"to": "bob", "message": "x", "idempotency_key": ""}, "id_invalid"),
    ("read", {"id": ID}, "inbox_item_unknown"),
    ("read", {"id": "../../etc/passwd"}, "inbox_item_unknown"),
    ("history", {"of": "nobody"}, "member_name_unknown"),
    ("history", {"of": "bob", "before": "rubbish"}, "cursor_invalid"),
    ("lock", {"action": "acquire", "resource": ""}, "resource_invalid"),
    ("lock", {"action": "acquire", "resource": "x" * 513}, "resource_invalid"),
    ("lock", {"action": "renew", "resource": "never", "token": 1}, "unknown_resource"),
    ("lock", {"action": "release", "resource": "never", "token": 1}, "unknown_resource"),
    ("status", {"id": ID}, "message_unknown"),
    ("status", {"id": "no-such-key"}, "outbox_row_unknown"),
]


async def test_arguments_that_the_schema_forbids_are_refused_by_every_tool(alice: Host) -> None:
    assert set(BAD) == set(GOOD) == set(TOOLS)
    async with stdio_agent(alice.settings.directory) as agent:
        for tool, cases in BAD.items():
            for arguments in cases:
                refused = await agent.refused(tool, **arguments)
                assert (refused["code"], refused["tool"]) == ("tool_arguments_invalid", tool), (tool, arguments)


async def test_refusals_of_the_daemon_reach_the_agent_with_their_code(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        codes = [(await agent.refused(tool, **arguments))["code"] for tool, arguments, _ in REFUSED]
    assert codes == [code for _, _, code in REFUSED]
    assert all(code in ERROR_CODES for code in codes)


async def test_a_mistyped_name_is_refused_with_the_right_one(alice: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        hint = (await agent.refused("send", to="alcie", message="x"))["hint"]
        assert hint == "Did you mean alice? Call `who` and use one of its names."


async def test_an_absent_argument_may_be_null_and_a_number_may_be_text(alice: Host, bob: Host) -> None:
    async with stdio_agent(alice.settings.directory) as agent:
        await agent.call("send", to=bob.node, message="x", reply_to=None, idempotency_key=None)
        assert (await agent.call("wait", seconds="0"))["messages"] == []
        mine = await agent.call("lock", action="acquire", resource="r", token=None)
        assert not (await agent.call("lock", action="release", resource="r", token=str(mine["token"])))["held"]


@pytest.mark.parametrize("mode", MODES)
async def test_every_tool_reports_a_daemon_that_is_down(mode: str, tmp_path: Path) -> None:
    async with stdio_agent(tmp_path / "nobody", mode=mode) as agent:
        assert {tool.name for tool in (await agent.client.list_tools()).tools} == set(TOOLS)
        for tool, arguments in GOOD.items():
            refused = await agent.refused(tool, **arguments)
            assert refused["code"] == "daemon_unreachable", tool
            assert "posthouse up" in refused["hint"]


async def test_a_tool_that_does_not_exist_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    async with stdio_agent(tmp_path / "nobody") as agent:
        with pytest.raises(MCPError) as failure:
            await agent.client.call_tool("delete_everything", {})
        assert failure.value.code == INVALID_PARAMS
