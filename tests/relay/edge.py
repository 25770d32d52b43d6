"""A relay on a real socket inside the test's loop, and clients that speak to it byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from posthouse.keys import NodeKey, sign_native
from posthouse.model.clock import Clock, system_clock
from posthouse.model.event import canonical_event_bytes, event_id
from posthouse.model.rate import Rate
from posthouse.relay.listen import ListenAddress, Protection
from posthouse.relay.locks.service import Locks
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.pinch.pinch_settings import PinchSettings
from posthouse.relay.server import NO_PROTECTION, RelayServer, ServerSettings
from posthouse.relay.webhooks.sending import PUBLIC_ONLY, SendingSettings
from posthouse.relay.wire.edge_limits import DEFAULT_LIMITS
from tests.relay.both_stores import store_of

PATIENCE_S = 20  # limit of every wait in these tests; nothing here takes a second by itself
FAST = Rate(1_000_000, 1_000_000)
AUTHENTICATION = 22242


class Author:
    """A node that signs events."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.key = NodeKey.generate()
        self._clock = clock or system_clock()
        self._last_ns = 0

    @property
    def node(self) -> str:
        return self.key.node

    def event(
        self, kind: int = 1, content: str = "", tags: Sequence[Sequence[str]] = (), at_ns: int | None = None
    ) -> dict[str, Any]:
        """Return a signed event as plain values; each one is later than the one before."""
        if at_ns is None:
            at_ns = self._last_ns = max(self._last_ns + 1, self._clock.wall_ns())
        canonical = canonical_event_bytes(self.node, at_ns, kind, tags, content)
        return {
            "id": event_id(canonical),
            "pubkey": self.node,
            "created_at_ns": at_ns,
            "kind": kind,
            "tags": [list(tag) for tag in tags],
            "content": content,
            "sig": sign_native(self.key, canonical),
        }

    def proof(self, relay: str, *tags: Sequence[str], at_ns: int | None = None) -> dict[str, Any]:
        """Return a signed proof for a relay."""
        return self.event(AUTHENTICATION, "", [("relay", relay), *tags], at_ns)


@dataclass
class Reply:
    """The response to an HTTP request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        value = self.value
        assert value["status"] == self.status
        assert value["hint"] and value["detail"] and value["title"]
        return str(value["code"])


class Edge:
    """A running relay and ways to talk to it."""

    def __init__(self, server: RelayServer, session: aiohttp.ClientSession, admin: Author) -> None:
        self.server = server
        self.session = session
        self.admin = admin
        self._token: str | None = None

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    @property
    def relay(self) -> str:
        return self.server.key.node

    @property
    def locks(self) -> Locks:
        """The locks of a relay that is alone."""
        locks = self.server.context.engine.locks
        assert isinstance(locks, Locks)
        return locks

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Send a request whose path goes out exactly as given."""
        sent = {} if body is None and data is None else {"Content-Type": "application/json"}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        payload = json.dumps(body).encode() if body is not None else data
        async with self.session.request(
            method, URL(self.url + path, encoded=True), data=payload, headers=sent | (headers or {})
        ) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, found, await response.read())

    async def get(self, path: str, token: str | None = None) -> Reply:
        return await self.send("GET", path, token=token)

    async def post(self, path: str, body: Any, token: str | None = None) -> Reply:
        return await self.send("POST", path, body, token)

    async def token(self, author: Author) -> str:
        """Authenticate an author over HTTP."""
        given = (await self.post("/v1/auth/challenge", {"pubkey": author.node})).value
        proof = author.proof(given["relay"], ("challenge", given["challenge"]))
        reply = await self.post("/v1/auth", {"event": proof})
        assert reply.status == 200, reply.body
        return str(reply.value["token"])

    async def publish(self, *events: dict[str, Any]) -> list[int]:
        """Publish events that must be accepted, in lists, and return their seqs."""
        seqs: list[int] = []
        if self._token is None:  # a list may be larger with a token
            self._token = await self.token(self.admin)
        for start in range(0, len(events), 500):
            reply = await self.post("/v1/events", {"events": events[start : start + 500]}, self._token)
            assert reply.status == 207, reply.body
            assert all(result["status"] in (200, 201, 202) for result in reply.value["results"]), reply.body
            seqs += [result["seq"] for result in reply.value["results"]]
        return seqs

    async def offered(self, count: int) -> None:
        """Wait until this many events have been committed since the relay started."""
        live, reached = self.server.context.live, asyncio.Event()

        def look(_: object = None) -> None:
            if live.offered >= count:
                reached.set()

        stop = self.server.context.engine.listen(look)
        look()
        async with asyncio.timeout(PATIENCE_S):
            await reached.wait()
        stop()

    @asynccontextmanager
    async def stream(self, author: Author | None = None, **options: Any) -> AsyncIterator[Stream]:
        """Open a stream, authenticated if an author is given."""
        async with self.session.ws_connect(
            self.url + "/v1/stream", max_msg_size=0, compress=0, autoclose=True, **options
        ) as socket:
            stream = Stream(socket)
            stream.hello = (await stream.expect("HELLO"))[0]
            if author is not None:
                await stream.authenticate(author)
            yield stream


class Stream:
    """A WebSocket client that reads and writes commands one by one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self.socket = socket
        self.hello: dict[str, Any] = {}
        self.frames = 0
        self._commands: list[list[Any]] = []

    async def authenticate(self, author: Author) -> dict[str, Any]:
        await self.send("AUTH", author.proof(self.hello["relay"], ("challenge", self.hello["challenge"])))
        authed: dict[str, Any] = (await self.expect("AUTHED"))[0]
        return authed

    async def send(self, *parts: Any) -> None:
        await self.socket.send_str(json.dumps(parts))

    async def send_list(self, commands: Sequence[Sequence[Any]]) -> None:
        await self.socket.send_str(json.dumps(commands))

    async def receive(self) -> list[Any]:
        """Return the next command, whether it came alone or in a list; ["END", code] when the stream has ended."""
        if not self._commands:
            async with asyncio.timeout(PATIENCE_S):
                message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                return ["END", self.socket.close_code]
            self.frames += 1
            frame = json.loads(message.data)
            self._commands = frame if isinstance(frame[0], list) else [frame]
        return self._commands.pop(0)

    async def expect(self, verb: str) -> list[Any]:
        """Return the arguments of the next command, which must have this verb."""
        command = await self.receive()
        assert command[0] == verb, command
        return command[1:]

    async def until(self, verb: str) -> list[list[Any]]:
        """Return every command up to and including the next one with this verb."""
        commands: list[list[Any]] = []
        while not commands or commands[-1][0] != verb:
            commands.append(await self.receive())
            assert commands[-1][0] != "END", commands[-3:]
        return commands

    async def notice(self) -> str:
        """Return the code of the next command, which must be a NOTICE."""
        return str((await self.expect("NOTICE"))[0])


@asynccontextmanager
async def running(
    data_dir: Path,
    clock: Clock | None = None,
    event_rate: Rate = FAST,
    deliveries: DeliverySettings = DEFAULT_SETTINGS,
    pinch: PinchSettings | None = None,
    protection: Protection = NO_PROTECTION,
    sending: SendingSettings = PUBLIC_ONLY,
    webhooks_per_mesh: int = 50,
    **limits: Any,
) -> AsyncIterator[Edge]:
    """Run a relay on a free port of loopback, with other limits where given."""
    admin = Author(clock)
    settings = ServerSettings(
        listen=ListenAddress("127.0.0.1", 0),
        data_dir=data_dir,
        store=store_of(data_dir),
        protection=replace(protection, has_admin=True),
        admins=(admin.node,),
        event_rate=event_rate,
        ephemeral_rate=FAST,
        limits=replace(DEFAULT_LIMITS, **limits),
        deliveries=deliveries,
        pinch=pinch,
        sending=sending,
        webhooks_per_mesh=webhooks_per_mesh,
        clock=clock or system_clock(),
    )
    server = RelayServer(settings)
    await server.start()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield Edge(server, session, admin)
    finally:
        await server.stop()
