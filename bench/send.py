"""All measurements of sending through daemons in one run: accepting, latency from host to host, draining a backlog.

Relay, daemons and client are separate processes. Requests are HTTP written by hand before the clock starts, one
outstanding per connection, so that the client is not what is measured. The relay is stopped while accepting alone is
measured, so that nothing drains meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench.comparison import Requirement
from bench.floors import OutboxFloor, outbox_floor
from bench.processes import RunningDaemon, StoppableRelay, running_daemon
from bench.scales import BODY_CHARS, DESTINATIONS, IN_FLIGHT, SEND_SETTINGS, SendScale
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient
from posthouse.keys import NodeKey

REQUIRED = (
    Requirement("synced sends/s over the socket, 64 in flight", "accept", "per_s", "at least", 3_000),
    Requirement("one at a time, of bare commits", "single", "ratio", "at least", 0.3),
    Requirement("from one host to the inbox of another, idle, p50 ms", "latency", "p50_ms", "at most", 15),
    Requirement("10,000 waiting rows, drained/s", "drain", "per_s", "at least", 2_500),
    Requirement("sends/s while draining, of sends/s without", "drain", "accept_share", "at least", 0.7),
)
_NUMBERS = count()
_BODY = "x" * BODY_CHARS


def make_requests(destinations: Sequence[str], number: int) -> list[bytes]:
    """Return sends to the destinations in turn, each with an id of its own."""
    return [_request(destinations[each % len(destinations)]) for each in range(number)]


def _request(to: str) -> bytes:
    body = json.dumps({"to": to, "message": _BODY, "client_message_id": f"bench-{next(_NUMBERS)}"}).encode()
    head = f"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Senders:
    """Some connections to one daemon."""

    def __init__(self, connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._connections = connections
        #: sends that were answered, for whoever looks while they run
        self.answered = 0

    async def rate(self, requests: Sequence[bytes]) -> float:
        """Send everything and return how many per second; anything but 202 is a failure of the measurement."""
        left = iter(requests)
        started = time.perf_counter()
        await asyncio.gather(*(self._work(reader, writer, left) for reader, writer in self._connections))
        return len(requests) / (time.perf_counter() - started)

    async def _work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: object) -> None:
        for request in left:  # type: ignore[attr-defined]
            writer.write(request)
            await _take_answer(reader)
            self.answered += 1

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()


async def open_senders(socket: Path, number: int) -> Senders:
    """Open so many connections."""
    return Senders([await asyncio.open_unix_connection(str(socket)) for _ in range(number)])


async def _take_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"http/1.1 202"):
        raise RuntimeError(f"the daemon answered {head[:12]!r}: {body[:200]!r}")


_ARRIVAL_TIMEOUT_S = 30
_WARM_UP = 20
_OPENING_S = 0.1


async def measure_latency(sender: RunningDaemon, reader: RunningDaemon, letters: int) -> dict[str, Any]:
    """Send letters one after the other and return the times."""
    arrived: asyncio.Queue[str] = asyncio.Queue()
    async with DaemonClient(sender.directory) as here, DaemonClient(reader.directory) as there:
        listening = asyncio.create_task(_listen(there, arrived))
        try:
            await _warm_up(here, arrived, reader.node)
            times_ms = sorted([await _travel(here, arrived, reader.node, number) for number in range(letters)])
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    return {
        "p50_ms": round(statistics.median(times_ms), 2),
        "p99_ms": round(times_ms[min(letters - 1, int(letters * 0.99))], 2),
        "letters": letters,
    }


async def _listen(there: AsyncDaemonClient, arrived: asyncio.Queue[str]) -> None:
    async for event in there.events():
        if event.event == "message":
            arrived.put_nowait(event.data["body"])


async def _warm_up(here: AsyncDaemonClient, arrived: asyncio.Queue[str], to: str) -> None:
    """Send until a letter comes through; the way is open and warm from then on."""
    while arrived.empty():  # the stream of events may not be open yet
        await here.send(to, "first")
        await asyncio.sleep(_OPENING_S)
    for number in range(_WARM_UP):
        await _travel(here, arrived, to, -number)


async def _travel(here: AsyncDaemonClient, arrived: asyncio.Queue[str], to: str, number: int) -> float:
    started = time.perf_counter()
    await here.send(to, f"letter {number}")
    async with asyncio.timeout(_ARRIVAL_TIMEOUT_S):
        while await arrived.get() != f"letter {number}":
            pass
    return (time.perf_counter() - started) * 1000


_LOOK_S = 0.005
_DRAIN_TIMEOUT_S = 120


async def measure_drain(
    relay: StoppableRelay, daemon: RunningDaemon, destinations: list[str], scale: SendScale
) -> dict[str, Any]:
    """Fill the outbox while the relay is away, let it drain; then again while sending. The relay runs afterwards.

    Sending while draining is compared with the filling just before it, when nothing drains.
    """
    rates, shares = [], []
    async with DaemonClient(daemon.directory) as client:
        senders = await open_senders(daemon.socket, IN_FLIGHT)
        for _ in range(scale.drains):
            await asyncio.to_thread(relay.stop)
            await senders.rate(make_requests(destinations, scale.backlog))
            rates.append(await _drain(relay, client))
            await asyncio.to_thread(relay.stop)
            alone = await senders.rate(make_requests(destinations, scale.backlog))
            shares.append(await _send_meanwhile(relay, client, senders, destinations, scale) / alone)
        senders.close()
    return {
        "per_s": round(statistics.median(rates)),
        "accept_share": round(statistics.median(shares), 3),
        "rounds": [round(each) for each in rates],
        "shares": [round(each, 3) for each in shares],
        "rows": scale.backlog,
        "destinations": len(destinations),
    }


async def _drain(relay: StoppableRelay, client: AsyncDaemonClient) -> float:
    """Return rows per second, from the first that left to the last."""
    full = await _begin(relay, client)
    started = time.perf_counter()
    await _until(client, 0)
    return full / (time.perf_counter() - started)


async def _send_meanwhile(
    relay: StoppableRelay, client: AsyncDaemonClient, senders: Senders, destinations: list[str], scale: SendScale
) -> float:
    """Return sends per second while the backlog leaves."""
    requests = make_requests(destinations, max(IN_FLIGHT, scale.backlog // 4))
    await _begin(relay, client)
    rate = await senders.rate(requests)
    await _until(client, 0)
    return rate


async def _begin(relay: StoppableRelay, client: AsyncDaemonClient) -> int:
    """Start the relay and return how many rows are left when the first have gone."""
    full = await _depth(client)
    await asyncio.to_thread(relay.start)
    return await _until(client, full - 1)


async def _until(client: AsyncDaemonClient, most: int) -> int:
    async with asyncio.timeout(_DRAIN_TIMEOUT_S):
        while (depth := await _depth(client)) > most:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(_LOOK_S)
    return depth


async def _depth(client: AsyncDaemonClient) -> int:
    health = await client.health()
    return health.queue_depth + health.inflight


def measure_send(folder: Path, scale: SendScale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {
        "bench": "send",
        "machine": {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))},
        "settings": dict(SEND_SETTINGS),
        "in_flight": IN_FLIGHT,
        "body_chars": BODY_CHARS,
        "synced_before_answer": True,
    }
    relay = StoppableRelay(folder)
    relay.start()
    try:
        with (
            running_daemon(folder / "a", relay.url) as one,
            running_daemon(folder / "b", relay.url) as other,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            report |= runner.run(_measure(folder, relay, one, other, scale, tell))
    finally:
        relay.stop()
    return report | {"required": [requirement.judge(report) for requirement in REQUIRED]}


async def _measure(
    folder: Path,
    relay: StoppableRelay,
    one: RunningDaemon,
    other: RunningDaemon,
    scale: SendScale,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    destinations = [NodeKey.generate().node for _ in range(DESTINATIONS)]
    report: dict[str, Any] = {}
    tell("from one host to another")
    report["latency"] = await measure_latency(one, other, scale.letters)
    await asyncio.to_thread(relay.stop)
    tell("sends, 64 in flight")
    report["accept"] = await _accept(one, destinations, scale)
    tell("sends, one at a time")
    with outbox_floor(folder / "floor") as floor:
        report["single"] = await _single(one, destinations, scale, floor)
    tell(f"{scale.backlog} rows that wait for the relay")
    report["drain"] = await measure_drain(relay, one, destinations, scale)
    return report


async def _accept(daemon: RunningDaemon, destinations: list[str], scale: SendScale) -> dict[str, Any]:
    senders = await open_senders(daemon.socket, IN_FLIGHT)
    rates = [await senders.rate(make_requests(destinations, scale.sends)) for _ in range(scale.rounds + 1)][1:]
    senders.close()
    return {"per_s": round(statistics.median(rates)), "rounds": [round(each) for each in rates]}


async def _single(
    daemon: RunningDaemon, destinations: list[str], scale: SendScale, floor: OutboxFloor
) -> dict[str, Any]:
    """Let sends and bare commits take turns; what counts is the median of the ratios."""
    senders = await open_senders(daemon.socket, 1)
    ours, bare = [], []
    for number in range(scale.rounds + 1):
        if number % 2:
            bare.append(await asyncio.to_thread(floor.rate, scale.singles))
        ours.append(await senders.rate(make_requests(destinations, scale.singles)))
        if not number % 2:
            bare.append(await asyncio.to_thread(floor.rate, scale.singles))
    senders.close()
    ratios = [sent / committed for sent, committed in zip(ours[1:], bare[1:], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "per_s": round(statistics.median(ours[1:])),
        "bare_per_s": round(statistics.median(bare[1:])),
        "ratios": [round(each, 3) for each in ratios],
    }
