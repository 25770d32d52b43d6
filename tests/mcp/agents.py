"""Agents to test with: the official SDK's client, at real servers over both transports, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from posthouse.mcp.server import ERROR_META

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
    """Return the arguments to Python that start a server for the daemon in a directory."""
    return ["-W", "error", "-m", "posthouse.cli.main", "mcp", "--dir", str(directory), *flags]


class Agent:
    """What a model would see of its tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must succeed; return its structured content, which must be its text too."""
        return structured(await self.client.call_tool(tool, arguments))

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


def structured(result: CallToolResult) -> dict[str, Any]:
    """Return the structured content of a success; what is shown as text is the same value."""
    assert not result.is_error, result.content
    [content] = result.content
    assert isinstance(content, TextContent)
    assert json.loads(content.text) == result.structured_content
    value: dict[str, Any] = result.structured_content
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
    """An agent whose program has started the server itself."""
    server = StdioServerParameters(
        command=sys.executable, args=command(directory, *flags), env=environment(directory.parent)
    )
    async with Client(server, mode=mode, read_timeout_seconds=BOUND_S) as client:
        yield Agent(client)


@dataclass
class HttpServer:
    """A running `posthouse mcp --http`."""

    process: asyncio.subprocess.Process
    url: str
    token: str

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def token_in(file: str) -> str:
    """Return the token that a server said lies in a file."""
    return Path(file).read_text().strip()


@asynccontextmanager
async def http_server(directory: Path, *flags: str) -> AsyncIterator[HttpServer]:
    """A server on a free port of loopback, until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command(directory, "--http", "--port", "0", "--json", *flags),
        env=environment(directory.parent),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            ready = json.loads(await process.stdout.readline())
        yield HttpServer(process, ready["url"], token_in(ready["token_file"]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def http_agent(server: HttpServer, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent that reaches a server over HTTP."""
    async with httpx2.AsyncClient(headers=server.authorization, timeout=httpx2.Timeout(BOUND_S)) as http:
        transport = streamable_http_client(server.url, http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=BOUND_S) as client:
            yield Agent(client)


@asynccontextmanager
async def agent_at(way: Way, directory: Path, *flags: str, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent at a daemon, by either transport."""
    if way == "stdio":
        async with stdio_agent(directory, *flags, mode=mode) as agent:
            yield agent
        return
    async with http_server(directory, *flags) as server, http_agent(server, mode) as agent:
        yield agent
