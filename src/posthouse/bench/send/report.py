"""One run of all measurements of sending through daemons.

Relay, daemons and the measuring client are separate processes; every answer comes after the sync of its commit. The
relay is away while accepting alone is measured, so that nothing drains meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from posthouse.bench.send.draining import measure_drain
from posthouse.bench.send.floor import OutboxFloor, outbox_floor
from posthouse.bench.send.latency import measure_latency
from posthouse.bench.send.process import Relay, RunningDaemon, running_daemon
from posthouse.bench.send.requirements import REQUIRED
from posthouse.bench.send.terms import BODY_CHARS, DESTINATIONS, IN_FLIGHT, RELAY_SETTINGS, Scale
from posthouse.bench.send.wire import make_requests, open_senders
from posthouse.keys import NodeKey


def measure_send(folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {
        "bench": "send",
        "machine": {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))},
        "settings": dict(RELAY_SETTINGS),
        "in_flight": IN_FLIGHT,
        "body_chars": BODY_CHARS,
        "synced_before_answer": True,
    }
    relay = Relay(folder)
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
    folder: Path, relay: Relay, one: RunningDaemon, other: RunningDaemon, scale: Scale, tell: Callable[[str], None]
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


async def _accept(daemon: RunningDaemon, destinations: list[str], scale: Scale) -> dict[str, Any]:
    senders = await open_senders(daemon.socket, IN_FLIGHT)
    rates = [await senders.rate(make_requests(destinations, scale.sends)) for _ in range(scale.rounds + 1)][1:]
    senders.close()
    return {"per_s": round(statistics.median(rates)), "rounds": [round(each) for each in rates]}


async def _single(daemon: RunningDaemon, destinations: list[str], scale: Scale, floor: OutboxFloor) -> dict[str, Any]:
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
