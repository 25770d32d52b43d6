"""Nodes that use locks over HTTP or a stream, with the same interface: a status and a value."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from posthouse.model.clock import FakeClock
from tests.relay.edge import PATIENCE_S, Author, Edge, Stream, running
from tests.relay.locks.until import until

Reply = tuple[int, dict[str, Any]]
LEASE_MS = 5_000


class LockClient(Protocol):
    """One authenticated node and its transport."""

    node: str

    async def ask(self, op: str, **arguments: Any) -> Reply:
        """Return status and body of an operation."""
        ...


class HttpLockClient:
    """A node with a token."""

    def __init__(self, edge: Edge, node: str, token: str) -> None:
        self.node = node
        self._edge = edge
        self._token = token

    async def ask(self, op: str, **arguments: Any) -> Reply:
        if op == "list":
            reply = await self._edge.get("/v1/locks", self._token)
        elif op == "inspect":
            mesh = f"?mesh={arguments['mesh']}" if "mesh" in arguments else ""
            path = f"/v1/locks/{quote(arguments['resource'], safe='')}{mesh}"
            reply = await self._edge.get(path, self._token)
        else:
            reply = await self._edge.post(f"/v1/locks/{op}", arguments, self._token)
        if reply.status != 200:
            assert reply.headers["content-type"] == "application/problem+json"
        return reply.status, reply.value


class StreamLockClient:
    """A node with a stream; answers are sorted to their requests."""

    def __init__(self, stream: Stream, node: str) -> None:
        self.node = node
        self.stream = stream
        self._numbers = itertools.count(1)
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.reader = asyncio.create_task(self._read())

    async def ask(self, op: str, **arguments: Any) -> Reply:
        req = f"r{next(self._numbers)}"
        answer = self._open[req] = asyncio.get_running_loop().create_future()
        await self.stream.send("LOCK", req, op, arguments)
        async with asyncio.timeout(PATIENCE_S):
            value = await answer
        return (value["status"] if "code" in value else 200), value

    async def _read(self) -> None:
        while True:
            command = await self.stream.receive()
            if command[0] == "END":
                return
            assert command[0] == "LOCKED", command
            self._open.pop(command[1]).set_result(command[2])


class LockRelay:
    """A relay on a fake clock, and nodes that use one transport."""

    def __init__(self, edge: Edge, clock: FakeClock, transport: str, opened: AsyncExitStack) -> None:
        self.edge = edge
        self.clock = clock
        self._transport = transport
        self._opened = opened

    async def node(
        self, author: Author | None = None, transport: str | None = None, edge: Edge | None = None
    ) -> LockClient:
        """Return a node that is authenticated."""
        author, edge = author or Author(self.clock), edge or self.edge
        if (transport or self._transport) == "http":
            return HttpLockClient(edge, author.node, await edge.token(author))
        stream = await self._opened.enter_async_context(edge.stream(author))
        client = StreamLockClient(stream, author.node)
        self._opened.callback(client.reader.cancel)
        return client

    async def waiting(self, count: int) -> None:
        """Wait until this many waiters wait for a lock."""
        locks = self.edge.server.context.engine.locks
        await until(lambda: locks.waiters == count)


@asynccontextmanager
async def run_lock_relay(folder: Path, transport: str, clock: FakeClock | None = None) -> AsyncIterator[LockRelay]:
    """Run a relay for nodes that use one transport."""
    clock = clock or FakeClock()
    async with running(folder, clock) as edge, AsyncExitStack() as opened:
        yield LockRelay(edge, clock, transport, opened)


def granted(reply: Reply) -> dict[str, Any]:
    """Return the grant in a reply."""
    status, value = reply
    assert status == 200, value
    assert set(value) == {"resource", "owner", "token", "lease_ms", "expires_at_ns"}
    return value


def refused(reply: Reply) -> tuple[int, str]:
    """Return status and code of a refusal."""
    status, value = reply
    assert status != 200, value
    assert value["hint"] and value["detail"] and value["status"] == status
    return status, value["code"]
