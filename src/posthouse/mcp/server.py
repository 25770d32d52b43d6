"""The MCP server of a daemon: one session per connected program, which acts as one agent of this host.

A session learns its program from the first request, registers its agent with the daemon, and answers requests with
the tools. Tools use the daemon's own local API through the agent's client, so MCP has no second set of rules. Every
outcome of a call is a result; a refusal is a result with isError and one JSON object with code, message and hint, so
that the model can act on it. Only a request that the protocol does not define is a protocol error.
If you change a tool: `python -m posthouse.mcp.server > src/posthouse/mcp/definitions.json`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import structlog

from posthouse.client.daemon import AsyncDaemonClient, DaemonAddress
from posthouse.mcp import protocol
from posthouse.mcp.protocol import Message, ProtocolError
from posthouse.mcp.refusals import refused
from posthouse.mcp.tool import ToolCall, ToolSpec, meta_key, meta_usage
from posthouse.mcp.tools.lock import LOCK, RESERVE
from posthouse.mcp.tools.reading import HISTORY, INBOX, READ, WAIT
from posthouse.mcp.tools.sending import SEND, STATUS
from posthouse.mcp.tools.who import TOPIC, WHO
from posthouse.model.address import AGENT_NAME_MAX_CHARS
from posthouse.model.errors import PosthouseError, error
from posthouse.tracing import TRACEPARENT, continuing

log = structlog.get_logger(__name__)
#: by name; the order is fixed, so that clients can cache the list
TOOLS: dict[str, ToolSpec] = {
    tool.name: tool for tool in (SEND, INBOX, WAIT, READ, WHO, HISTORY, TOPIC, LOCK, RESERVE, STATUS)
}
DEFAULT_WAIT_MAX_S = 50  # many agents cancel calls after 60 s
CALLS_MAX = 64  # at once in one session: more than any program sensibly needs
#: sends a notification to the client
Notify = Callable[[Message], Awaitable[None]]
_UNNAMED = "agent"
#: endings of program names in the protocol that agent names leave out
_CLIENT_SUFFIX = re.compile(r"(-mcp)?-client$")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
#: shorter names, the same as those that the hooks of these programs use
_SHORTER = {"claude-code": "claude", "gemini-cli": "gemini", "cursor-vscode": "cursor"}


def name_of_program(program: str) -> str:
    """Return the agent name for a program: `codex-mcp-client` becomes `codex`."""
    plain = _CLIENT_SUFFIX.sub("", _NOT_IN_NAMES.sub("-", program.lower()).strip("-"))
    return _SHORTER.get(plain, plain)[:AGENT_NAME_MAX_CHARS].strip("-") or _UNNAMED


class McpServer:
    """The sessions of one daemon."""

    def __init__(
        self,
        address: DaemonAddress,
        wait_max_s: int,
        program_pid: Callable[[int], int] = lambda pid: pid,
        present_name: Callable[[str], str] = lambda name: name,
    ) -> None:
        """Serve with the tools of the daemon at `address`.

        `program_pid` finds the program behind a pipe's parent, `present_name` the name of an agent after renames.
        """
        self._address = address
        self.program_pid = program_pid
        self.present_name = present_name
        self.wait_max_s = wait_max_s
        self.definitions: list[Message] = [tool.definition(wait_max_s) for tool in TOOLS.values()]
        self._clients: dict[tuple[str, str | None], AsyncDaemonClient] = {}
        #: tasks that serve a pipe
        self.pipes: set[asyncio.Task[Any]] = set()
        #: sessions over HTTP with running calls, by session id: another request may cancel these calls
        self.http_sessions: dict[str, McpSession] = {}

    def client(self, agent: str, mesh: str | None) -> AsyncDaemonClient:
        """Return the client that acts for an agent in a mesh; "" acts for the host, None means the default mesh."""
        if (agent, mesh) not in self._clients:
            address = replace(self._address, mesh=mesh)
            self._clients[agent, mesh] = AsyncDaemonClient(address, agent=agent)
        return self._clients[agent, mesh]

    async def close(self) -> None:
        """End the connection of every pipe, with its running calls; the pipes connect to the next daemon."""
        for task in self.pipes:
            task.cancel()
        await asyncio.gather(*self.pipes, return_exceptions=True)
        for client in self._clients.values():
            await client.close()


class McpSession:
    """The session of one program: its agent, and its running calls."""

    def __init__(
        self,
        server: McpServer,
        *,
        name: str | None = None,
        mesh: str | None = None,
        program: str | None = None,
        pid: int | None = None,
        project: str | None = None,
        key: str | None = None,
    ) -> None:
        """Begin a session; `name` is the agent's requested name, `key` makes the requests of the session repeatable."""
        self._server = server
        self._name = name
        self._mesh = mesh
        self._program = program
        self._pid = None if pid is None else server.program_pid(pid)
        self._project = project
        self._key = key or secrets.token_hex(8)
        self._agent: str | None = None
        self._registering = asyncio.Lock()
        self._running: dict[int | str, asyncio.Task[Message]] = {}

    @property
    def wanted_name(self) -> str:
        """The name that the agent gets unless another running program has it."""
        return self._name or name_of_program(self._program or _UNNAMED)

    @property
    def running(self) -> int:
        """The number of running calls."""
        return len(self._running)

    async def answer(self, message: Message, notify: Notify) -> Message | None:
        """Answer one message; None if it needs no response, or its request was cancelled."""
        if not protocol.is_request(message):
            if message.get("method") == "notifications/cancelled":
                self._cancel(protocol.params_of(message).get("requestId"))
            return None
        self._program = protocol.client_name(message) or self._program
        try:
            result = protocol.simple_result(message, self._server.definitions)
            if result is None:
                result = await self._run(message, notify)
            elif message["method"] != "ping":
                await self.introduce()
        except ProtocolError as failure:
            return protocol.error_response(message["id"], failure)
        return None if result is None else protocol.response(message, result)

    def cancel_all(self) -> None:
        """Cancel every running call."""
        for task in self._running.values():
            task.cancel()

    def _cancel(self, request_id: object) -> None:
        task = self._running.get(request_id) if isinstance(request_id, int | str) else None
        if task is not None:
            task.cancel()

    async def introduce(self) -> None:
        """Register the agent so that it can get mail; a failure is only logged here, the first tool call reports it."""
        try:
            await self.agent()
        except PosthouseError as failure:
            log.warning("agent_not_registered", name=self.wanted_name, code=failure.code)

    async def agent(self) -> str:
        """Return the name of the agent; register it the first time."""
        async with self._registering:
            self._agent = await self._register() if self._agent is None else self._server.present_name(self._agent)
            return self._agent

    async def _register(self) -> str:
        client = self._server.client("", self._mesh)
        if self._name is None and self._pid is not None:
            # a hook of the program may have named it before
            for agent in await client.agents():
                if agent.pid == self._pid and agent.is_running:
                    return agent.name
        about = {"program": self._program, "project": self._project}
        given = {name: value for name, value in about.items() if value is not None}
        return (await client.register(self.wanted_name, pid=self._pid, **given)).name  # type: ignore[arg-type]

    # tools

    async def _run(self, message: Message, notify: Notify) -> Message | None:
        """Run a tool call and return its result, or None if a notification cancelled it."""
        if len(self._running) >= CALLS_MAX:
            return refused(error("daemon_busy", limit=CALLS_MAX))
        request_id = message["id"]
        task = asyncio.create_task(self._call(TOOLS[protocol.params_of(message)["name"]], message, notify))
        self._running[request_id] = task
        try:
            await asyncio.wait([task])
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if self._running.get(request_id) is task:
                del self._running[request_id]
        return None if task.cancelled() else task.result()

    async def _call(self, tool: ToolSpec, message: Message, notify: Notify) -> Message:
        try:
            arguments = tool.read_arguments(protocol.params_of(message).get("arguments"))
            agent = await self.agent()
            with continuing(protocol.meta_of(message).get(TRACEPARENT)):
                answer = await tool.run(self._context(tool, agent, message, notify), arguments)
        except PosthouseError as failure:
            return refused(failure)
        except Exception as failure:
            log.error("tool_failed", tool=tool.name, exc_info=failure)
            return refused(error("internal", reason=type(failure).__name__))
        return tool.result(answer)

    def _context(self, tool: ToolSpec, agent: str, message: Message, notify: Notify) -> ToolCall:
        meta = protocol.meta_of(message)
        token = meta.get("progressToken")

        async def report(passed: float, total: float, text: str) -> None:
            if token is not None:
                await notify(protocol.progress(token, passed, total, text))

        key = meta_key(meta) or repeatable_key(self._key, message["id"])
        client = self._server.client(agent, self._mesh)
        usage = meta_usage(meta)
        return ToolCall(tool.name, client, agent, report, key, self._server.wait_max_s, self._project, usage)


def repeatable_key(session: str, request_id: int | str) -> str:
    """Return the idempotency key of a request: the same if its session sends it again to another daemon."""
    return f"{session}-{request_id if isinstance(request_id, int) else sha256(request_id.encode()).hexdigest()[:16]}"


def default_definitions() -> bytes:
    """Return the tools of a daemon with default settings, for the pipe, which answers while no daemon runs."""
    tools = [msgspec.json.encode(tool.definition(DEFAULT_WAIT_MAX_S)) for tool in TOOLS.values()]
    return b"[\n" + b",\n".join(tools) + b"\n]\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(default_definitions())
