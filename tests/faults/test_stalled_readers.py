"""Clients that read nothing against a relay process: its memory stays within the bound, and others are served.

Stalled subscribers, counting clients and clients that leave LOCK lists unread attack at once. The sample is small;
the whole campaign (100 stalled readers, 12 counting clients) also compares the time of a plain query with its idle
time, which needs a machine without other work.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.faults.campaign import rounds
from tests.relay.edge import Author, Stream
from tests.relay.hostile.wire import Wire, masked
from tests.relay.process.relay import RelayProcess, relay_process

pytestmark = pytest.mark.campaign
MIB = 1024 * 1024
BOUND = 16 * MIB
#: rows, pages and interpreter overhead of requests that run; far below what the attack would take
ALLOWANCE = 64 * MIB
PATIENCE_S = 120
STALLED = rounds(sample=25, full=100)
COUNTING = rounds(sample=4, full=12)
LISTING = rounds(sample=4, full=12)
IS_FULL = bool(rounds(sample=0, full=1))
LISTS = 200  # of 90 KB each, per client
EVENTS = 250  # of 80 KB: 20 MB
LOCKS = 500


class Attacked:
    """A relay process, and connections to it."""

    def __init__(self, relay: RelayProcess, session: aiohttp.ClientSession, author: Author) -> None:
        self.relay = relay
        self.session = session
        self.host, port = relay.ready["listen"].rsplit(":", 1)
        self.port = int(port)
        self.author = author

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def rss(self, field: str = "VmRSS") -> int:
        """Return a size from the kernel's account of the process, in bytes."""
        text = Path(f"/proc/{self.relay.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        async with self.session.ws_connect(f"{self.url}/v1/stream", max_msg_size=0) as opened:
            stream = Stream(opened)
            stream.hello = (await stream.expect("HELLO"))[0]
            await stream.authenticate(self.author)
            yield stream

    @asynccontextmanager
    async def deaf(self, *commands: bytes) -> AsyncIterator[Wire]:
        """Authenticate on a plain socket, send commands, and read nothing from then on."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (self.host, self.port))
        reader, writer = await asyncio.open_connection(sock=raw)
        wire = Wire(reader, writer)
        await wire.send(
            b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        hello = json.loads((await wire.frame())[1])[1]
        proof = self.author.proof(hello["relay"], ("challenge", hello["challenge"]))
        await wire.send(masked(json.dumps(["AUTH", proof]).encode()))
        assert (await wire.frame())[1].startswith(b'["AUTHED"')
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for command in commands:
            await wire.send(masked(command))
        try:
            yield wire
        finally:
            writer.transport.abort()

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.url}/metrics", headers=await self._token()) as reply:
            text = await reply.text()
        return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])

    async def query_s(self, times: int) -> float:
        """Return the median time of a plain query."""
        headers, taken = await self._token(), []
        for _ in range(times):
            started = time.perf_counter()
            async with self.session.get(f"{self.url}/v1/events?kinds=2&limit=10", headers=headers) as reply:
                assert len((await reply.json())["events"]) == 10
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)

    async def _token(self) -> dict[str, str]:
        async with self.session.post(f"{self.url}/v1/auth/challenge", json={"pubkey": self.author.node}) as reply:
            given = await reply.json()
        proof = self.author.proof(given["relay"], ("challenge", given["challenge"]))
        async with self.session.post(f"{self.url}/v1/auth", json={"event": proof}) as reply:
            return {"Authorization": f"Bearer {(await reply.json())['token']}"}

    async def fill(self) -> None:
        """Store events and hold locks, whose lists are large."""
        async with self.stream() as stream:
            large = [self.author.event(1, "x" * 80_000) for _ in range(EVENTS)]
            small = [self.author.event(2, str(number)) for number in range(20)]
            for start in range(0, EVENTS, 25):
                await stream.send_list([["EVENT", event] for event in large[start : start + 25] + small])
                await _collect(stream, "OK", 25 + len(small))
            for number in range(LOCKS):
                arguments = {"resource": f"builds/{number:060}", "lease_ms": 600_000}
                await stream.send("LOCK", str(number), "acquire", arguments)
            await _collect(stream, "LOCKED", LOCKS)


async def _collect(stream: Stream, verb: str, count: int) -> None:
    for _ in range(count):
        answer: list[Any] = await stream.expect(verb)
        assert "code" not in answer[-1], answer


@asynccontextmanager
async def attacked(tmp_path: Path) -> AsyncIterator[Attacked]:
    rates = ("--event-rate", "1000000", "--event-burst", "1000000")
    author = Author()
    settings = ("--outbound-max-bytes", str(BOUND), "--admin", author.node)
    async with (
        relay_process(tmp_path, *settings, *rates) as relay,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session,
        asyncio.timeout(PATIENCE_S),
    ):
        assert relay.process.stderr is not None
        log = asyncio.create_task(relay.process.stderr.read())  # a full pipe would stop the relay
        found = Attacked(relay, session, author)
        await found.fill()
        yield found
        log.cancel()


async def test_memory_stays_within_its_bound_while_clients_read_nothing(tmp_path: Path) -> None:
    every = b'["REQ","all",{},{"kinds":[1]}]'
    lists = b"[" + b",".join(b'["LOCK","%d","list",{}]' % number for number in range(LISTS)) + b"]"
    counts = b"[" + b",".join(b'["COUNT","%d",{"#x":["none"]}]' % number for number in range(LISTS)) + b"]"
    async with attacked(tmp_path) as relay, AsyncExitStack() as crowd:
        idle_s = await relay.query_s(20)
        before = relay.rss()
        for command, clients in ((every, STALLED), (lists, LISTING), (counts, COUNTING)):
            for _ in range(clients):
                await crowd.enter_async_context(relay.deaf(command))
        async with relay.stream() as healthy:
            await healthy.send("REQ", "all", {}, {"kinds": [1]})
            assert len(await healthy.until("EOSE")) == EVENTS + 1
            await healthy.send("COUNT", "c", {"kinds": [1]})
            assert await healthy.expect("COUNT") == ["c", EVENTS]
        busy_s = await relay.query_s(20)
        assert await relay.metric("posthouse_relay_readers_dropped_total") > 0
        assert await relay.metric("posthouse_relay_outbound_bytes") <= BOUND
        grown = relay.rss("VmHWM") - before
        print(f"grown {grown / MIB:.1f} MiB, query {idle_s * 1e3:.1f} ms idle, {busy_s * 1e3:.1f} ms attacked")  # noqa: T201
        assert grown < BOUND + ALLOWANCE
        if IS_FULL:
            assert busy_s < 10 * idle_s
