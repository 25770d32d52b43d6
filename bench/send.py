"""All measurements of sending through daemons in one run: accepting, latency from host to host, draining a backlog.

Relay, daemons and client are separate processes. HTTP requests are written before the clock starts, with one in
flight per connection, so that the cost of the client does not count. The relay is stopped while only accepting is
measured, so that the outbox does not drain meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench.comparison import Requirement, describe_machine
from bench.floors import OutboxFloor, outbox_floor
from bench.http_floor import http_floor
from bench.processes import RelayProcess, RunningDaemon, running_daemon
from bench.scales import BODY_CHARS, DESTINATIONS, IN_FLIGHT, SEND_SETTINGS, SendScale
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient
from posthouse.keys import NodeKey

REQUIRED = (
    Requirement("Durable sends/s over the socket, 64 in flight", "accept", "per_s", "at least", 3_000),
    Requirement("One send at a time, relative to bare commits", "single", "ratio", "at least", 0.5),
    Requirement("Latency from one idle host to the inbox of another, p50 ms", "latency", "p50_ms", "at most", 4),
    Requirement("Draining 10,000 waiting rows, rows/s", "drain", "per_s", "at least", 2_500),
    Requirement(
        "Sends/s while draining, relative to sends/s without draining", "drain", "accept_share", "at least", 0.7
    ),
)
_NUMBERS = count()
_BODY = "x" * BODY_CHARS


def make_requests(destinations: Sequence[str], number: int) -> list[bytes]:
    """Return send requests to the destinations in turn, each with its own id."""
    return [_request(destinations[each % len(destinations)]) for each in range(number)]


def _request(to: str) -> bytes:
    body = json.dumps({"to": to, "message": _BODY, "client_message_id": f"bench-{next(_NUMBERS)}"}).encode()
    head = f"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Senders:
    """Several connections to one daemon."""

    def __init__(self, connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._connections = connections

    async def rate(self, requests: Sequence[bytes]) -> float:
        """Send all requests and return requests per second; any answer other than 202 raises."""
        left = iter(requests)
        started = time.perf_counter()
        await asyncio.gather(*(self._work(reader, writer, left) for reader, writer in self._connections))
        return len(requests) / (time.perf_counter() - started)

    async def _work(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: Iterator[bytes]
    ) -> None:
        for request in requests:
            writer.write(request)
            await _read_answer(reader)

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()


async def open_senders(socket: Path, number: int) -> Senders:
    """Open this many connections."""
    return Senders([await asyncio.open_unix_connection(str(socket)) for _ in range(number)])


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"http/1.1 202"):
        raise RuntimeError(f"the daemon answered {head[:12]!r}: {body[:200]!r}")


_ARRIVAL_TIMEOUT_S = 30
_WARM_UP = 20
_OPENING_S = 0.1


async def measure_latency(sender: RunningDaemon, reader: RunningDaemon, messages: int) -> dict[str, Any]:
    """Send messages one after the other and return the percentiles of their times."""
    arrived: asyncio.Queue[str] = asyncio.Queue()
    async with DaemonClient(sender.directory) as here, DaemonClient(reader.directory) as there:
        listening = asyncio.create_task(_listen(there, arrived))
        try:
            await _warm_up(here, arrived, reader.node)
            times_ms = sorted([await _time_message(here, arrived, reader.node, number) for number in range(messages)])
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    return {
        "p50_ms": round(statistics.median(times_ms), 2),
        "p99_ms": round(times_ms[min(messages - 1, int(messages * 0.99))], 2),
        "letters": messages,
    }


async def _listen(there: AsyncDaemonClient, arrived: asyncio.Queue[str]) -> None:
    async for event in there.events():
        if event.event == "message":
            arrived.put_nowait(event.data["body"])


async def _warm_up(here: AsyncDaemonClient, arrived: asyncio.Queue[str], to: str) -> None:
    """Send until a message arrives: from then on every connection is open and warm."""
    while arrived.empty():  # the event stream may not be open yet
        await here.send(to, "first")
        await asyncio.sleep(_OPENING_S)
    for number in range(_WARM_UP):
        await _time_message(here, arrived, to, -number)


async def _time_message(here: AsyncDaemonClient, arrived: asyncio.Queue[str], to: str, number: int) -> float:
    started = time.perf_counter()
    await here.send(to, f"message {number}")
    async with asyncio.timeout(_ARRIVAL_TIMEOUT_S):
        while await arrived.get() != f"message {number}":
            pass
    return (time.perf_counter() - started) * 1000


_POLL_S = 0.005
_DRAIN_TIMEOUT_S = 120


async def measure_drain(
    relay: RelayProcess, daemon: RunningDaemon, destinations: list[str], scale: SendScale
) -> dict[str, Any]:
    """Fill the outbox while the relay is stopped and let it drain; then again while sending. The relay runs afterwards.

    Sending while draining is compared with the filling just before it, when the outbox does not drain.
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
            shares.append(await _send_while_draining(relay, client, senders, destinations, scale) / alone)
        senders.close()
    return {
        "per_s": round(statistics.median(rates)),
        "accept_share": round(statistics.median(shares), 3),
        "rounds": [round(each) for each in rates],
        "shares": [round(each, 3) for each in shares],
        "rows": scale.backlog,
        "destinations": len(destinations),
    }


async def _drain(relay: RelayProcess, client: AsyncDaemonClient) -> float:
    """Return rows per second, from the first sent row to the last."""
    full = await _begin(relay, client)
    started = time.perf_counter()
    await _until(client, 0)
    return full / (time.perf_counter() - started)


async def _send_while_draining(
    relay: RelayProcess, client: AsyncDaemonClient, senders: Senders, destinations: list[str], scale: SendScale
) -> float:
    """Return sends per second while the backlog drains."""
    requests = make_requests(destinations, max(IN_FLIGHT, scale.backlog // 4))
    await _begin(relay, client)
    rate = await senders.rate(requests)
    await _until(client, 0)
    return rate


async def _begin(relay: RelayProcess, client: AsyncDaemonClient) -> int:
    """Start the relay and return the rows that are left when the first have been sent."""
    full = await _depth(client)
    await asyncio.to_thread(relay.start)
    return await _until(client, full - 1)


async def _until(client: AsyncDaemonClient, most: int) -> int:
    async with asyncio.timeout(_DRAIN_TIMEOUT_S):
        while (depth := await _depth(client)) > most:  # noqa: ASYNC110 - the daemon has no event for it
            await asyncio.sleep(_POLL_S)
    return depth


async def _depth(client: AsyncDaemonClient) -> int:
    health = await client.health()
    return health.queue_depth + health.inflight


def measure_send(folder: Path, scale: SendScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {
        "bench": "send",
        "machine": describe_machine(),
        "settings": dict(SEND_SETTINGS),
        "in_flight": IN_FLIGHT,
        "body_chars": BODY_CHARS,
        "synced_before_answer": True,
    }
    relay = RelayProcess(folder / "relay", SEND_SETTINGS)
    relay.start()
    try:
        with (
            running_daemon(folder / "a", relay.url) as one,
            running_daemon(folder / "b", relay.url) as other,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            report |= runner.run(_measure(folder, relay, one, other, scale, on_progress))
    finally:
        relay.stop()
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


async def _measure(
    folder: Path,
    relay: RelayProcess,
    one: RunningDaemon,
    other: RunningDaemon,
    scale: SendScale,
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    destinations = [NodeKey.generate().node for _ in range(DESTINATIONS)]
    report: dict[str, Any] = {}
    on_progress("from one host to another")
    report["latency"] = await measure_latency(one, other, scale.messages)
    await asyncio.to_thread(relay.stop)
    on_progress("sends, 64 in flight")
    report["accept"] = await _accept(one, destinations, scale)
    on_progress("sends, one at a time")
    with outbox_floor(folder / "floor") as floor, http_floor(folder / "http") as http_socket:
        report["single"] = await _single(one, destinations, scale, floor, http_socket)
    on_progress(f"{scale.backlog} rows waiting for the relay")
    report["drain"] = await measure_drain(relay, one, destinations, scale)
    return report


async def _accept(daemon: RunningDaemon, destinations: list[str], scale: SendScale) -> dict[str, Any]:
    senders = await open_senders(daemon.socket, IN_FLIGHT)
    rates = [await senders.rate(make_requests(destinations, scale.sends)) for _ in range(scale.rounds + 1)][1:]
    senders.close()
    return {"per_s": round(statistics.median(rates)), "rounds": [round(each) for each in rates]}


async def _single(
    daemon: RunningDaemon, destinations: list[str], scale: SendScale, floor: OutboxFloor, http_socket: Path
) -> dict[str, Any]:
    """Alternate sends, bare commits, and bare commits behind HTTP; the results are the medians of the ratios."""
    senders, floor_senders = await open_senders(daemon.socket, 1), await open_senders(http_socket, 1)
    ours, bare, behind_http = [], [], []
    for number in range(scale.rounds + 1):
        if number % 2:
            bare.append(await asyncio.to_thread(floor.rate, scale.singles))
        ours.append(await senders.rate(make_requests(destinations, scale.singles)))
        behind_http.append(await floor_senders.rate(make_requests(destinations, scale.singles)))
        if not number % 2:
            bare.append(await asyncio.to_thread(floor.rate, scale.singles))
    senders.close()
    floor_senders.close()
    ratios = [sent / committed for sent, committed in zip(ours[1:], bare[1:], strict=True)]
    http_ratios = [sent / committed for sent, committed in zip(behind_http[1:], bare[1:], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "http_ratio": round(statistics.median(http_ratios), 3),
        "per_s": round(statistics.median(ours[1:])),
        "http_per_s": round(statistics.median(behind_http[1:])),
        "bare_per_s": round(statistics.median(bare[1:])),
        "ratios": [round(each, 3) for each in ratios],
        "http_ratios": [round(each, 3) for each in http_ratios],
    }
