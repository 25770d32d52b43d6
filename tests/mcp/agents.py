"""Agents to test with: the official SDK's client, at real daemons, through the pipe and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from posthouse.mcp.protocol import ERROR_META
from tests.daemon.hosts import Host

BOUND_S = 60
Way = Literal["stdio", "http"]
WAYS: tuple[Way, ...] = ("stdio", "http")
#: with the handshake of old, and the newest version
MODES = ("legacy", "auto")


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which nothing of this machine is configured but where Python finds its modules."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return kept | {"HOME": str(home)}


def command(directory: Path, *flags: str) -> list[str]:
    """Return the arguments to Python that start the pipe to the daemon in a directory."""
    return ["-W", "error", "-m", "posthouse.cli.main", "mcp", "--dir", str(directory), *flags]


class Agent:
    """What a model would see of its tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; return its answer."""
        return answer_of(await self.client.call_tool(tool, arguments))

    async def refused(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must fail; return the error as the model reads it."""
        return problem(await self.client.call_tool(tool, arguments))

    async def until(self, tool: str, is_right: Any, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool until its answer is right; fails with the last answer."""
        seen: dict[str, Any] = {}
        try:
            async with asyncio.timeout(BOUND_S):
                while True:
                    seen = await self.call(tool, **arguments)
                    if is_right(seen):
                        return seen
                    await asyncio.sleep(0.02)
        except TimeoutError as late:
            raise AssertionError(f"it stayed at {seen}") from late


def answer_of(result: CallToolResult) -> dict[str, Any]:
    """Return the answer of a success; structured content, if there is any, is the same value as the text."""
    assert not result.is_error, result.content
    [content] = result.content
    assert isinstance(content, TextContent)
    value: dict[str, Any] = json.loads(content.text)
    assert result.structured_content in (None, value)
    return value


def problem(result: CallToolResult) -> dict[str, Any]:
    """Return the error of a failure; it has code, message and hint, and nothing that claims to be an answer."""
    assert result.is_error, result.structured_content
    assert result.structured_content is None
    [content] = result.content
    assert isinstance(content, TextContent)
    body: dict[str, Any] = json.loads(content.text)
    assert body["code"] and body["message"] and body["hint"]
    assert (result.meta or {})[ERROR_META] == body
    return body


@asynccontextmanager
async def stdio_agent(directory: Path, *flags: str, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent whose program has started the pipe itself."""
    server = StdioServerParameters(
        command=sys.executable, args=command(directory, *flags), env=environment(directory.parent)
    )
    async with Client(server, mode=mode, read_timeout_seconds=BOUND_S) as client:
        yield Agent(client)


def url_of(host: Host) -> str:
    """Return the address of MCP over HTTP."""
    return f"http://127.0.0.1:{host.daemon.port}/mcp"


def authorization(host: Host) -> dict[str, str]:
    """Return the header with the token for the tools."""
    return {"Authorization": f"Bearer {(host.settings.directory / 'mcp_token').read_text().strip()}"}


@asynccontextmanager
async def http_agent(host: Host, mode: str = "auto", query: str = "") -> AsyncIterator[Agent]:
    """An agent that reaches the daemon over HTTP."""
    async with httpx2.AsyncClient(headers=authorization(host), timeout=httpx2.Timeout(BOUND_S)) as http:
        transport = streamable_http_client(url_of(host) + query, http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=BOUND_S) as client:
            yield Agent(client)


@asynccontextmanager
async def agent_at(way: Way, host: Host, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent at a daemon, by either transport."""
    made = http_agent(host, mode) if way == "http" else stdio_agent(host.settings.directory, mode=mode)
    async with made as agent:
        yield agent
