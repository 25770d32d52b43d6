"""Receivers of webhooks for tests: real HTTP servers whose answers a test decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from aiohttp import web

from posthouse.relay.webhooks.sending import SendingSettings
from tests.relay.edge import PATIENCE_S, Author, Edge, Reply

LOOPBACK = SendingSettings(networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")), timeout_s=5.0)


@dataclass
class Request:
    """A request that a receiver got."""

    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """A running receiver."""

    url: str
    requests: list[Request] = field(default_factory=list)
    #: returns the status of the answer to a request
    answer: Callable[[Request], int] = lambda _request: 204
    #: headers of answers
    headers: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.Response:
        """Note a request and answer it."""
        got = Request({name.lower(): value for name, value in request.headers.items()}, await request.read())
        self.requests.append(got)
        self.changed.set()
        return web.Response(status=self.answer(got), headers=self.headers, text="not read by the relay")

    async def until(self, count: int) -> list[Request]:
        """Wait until so many requests have come."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.requests) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.requests

    @property
    def contents(self) -> list[str]:
        """The content of each event that came, in order."""
        return [each.value["data"]["event"]["content"] for each in self.requests]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of loopback."""
    receiver = Receiver("")
    server = web.Server(receiver.handle)  # type: ignore[arg-type]
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def add_webhook(edge: Edge, author: Author, url: str, **given: Any) -> Any:
    """Add a webhook that must be accepted; return the answer."""
    reply = await edge.post("/v1/webhooks", {"url": url, **given}, await edge.token(author))
    assert reply.status == 201, reply.body
    return reply.value


async def refused(edge: Edge, author: Author, url: str, **given: Any) -> Reply:
    """Add a webhook that must be refused."""
    reply = await edge.post("/v1/webhooks", {"url": url, **given}, await edge.token(author))
    assert reply.status >= 400, reply.body
    return reply


async def state_of(edge: Edge, author: Author, webhook_id: str) -> Any:
    """Return a webhook with its parked events."""
    reply = await edge.get(f"/v1/webhooks/{webhook_id}", await edge.token(author))
    assert reply.status == 200, reply.body
    return reply.value


async def until_state(edge: Edge, author: Author, webhook_id: str, is_right: Callable[[Any], bool]) -> Any:
    """Wait until a webhook is as it should be; fails with what was seen last."""
    token, seen = await edge.token(author), None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = (await edge.get(f"/v1/webhooks/{webhook_id}", token)).value
                if is_right(seen):
                    return seen
                await asyncio.sleep(0.01)
    except TimeoutError as late:
        raise AssertionError(f"it stayed at {seen!r}") from late


async def records_of(edge: Edge, types: str) -> list[Any]:
    """Return the journal records of these types."""
    reply = await edge.get(f"/v1/journal?types={types}&limit=500", await edge.token(edge.admin))
    assert reply.status == 200, reply.body
    found: list[Any] = reply.value["records"]
    return found
