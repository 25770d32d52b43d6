"""Latency from the call of publish to the first line of the handler, in one process and across two.

Messages are sent one at a time with a pause, so that no message waits for another.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.comparison import percentile
from bench.processes import run_module
from bench.scales import BUS_LIMITS, PAYLOAD, SENDER, SUBJECT, BusScale
from posthouse.bus import Bus
from posthouse.model.envelope import Envelope

_PAUSE_S = 0.002  # longer than a delivery: the bus is idle before the next message


async def measure_latency(folder: Path, scale: BusScale) -> dict[str, Any]:
    """Return the median and the 99th percentile of both, in milliseconds."""
    inside = await _one_process(folder / "inside", scale.latency_messages)
    across = await _two_processes(folder / "across", scale.latency_messages)
    return {
        "one_process_p50_ms": round(percentile(inside, 0.5), 3),
        "one_process_p99_ms": round(percentile(inside, 0.99), 3),
        "across_processes_p50_ms": round(percentile(across, 0.5), 3),
        "across_processes_p99_ms": round(percentile(across, 0.99), 3),
    }


async def _one_process(folder: Path, count: int) -> list[float]:
    times: list[float] = []
    handled = asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        times.append((perf_counter_ns() - envelope.payload["sent_ns"]) / 1e6)
        handled.set()

    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, handle)
        for _ in range(count):
            handled.clear()
            await bus.publish(SUBJECT, PAYLOAD | {"sent_ns": perf_counter_ns()}, from_=SENDER)
            await handled.wait()
            await asyncio.sleep(_PAUSE_S)
    return times


async def _two_processes(folder: Path, count: int) -> list[float]:
    """Measure with a child that handles messages and prints the times; both read the same monotonic clock."""
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        child = await run_module("bench.bus_latency", str(folder))
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            await asyncio.wait_for(child.stdout.readline(), 60)
            times: list[float] = []
            for _ in range(count):
                await bus.publish(SUBJECT, PAYLOAD | {"sent_ns": perf_counter_ns()}, from_=SENDER)
                times.append(float(await asyncio.wait_for(child.stdout.readline(), 60)))
                await asyncio.sleep(_PAUSE_S)
        finally:
            child.stdin.close()
            await child.wait()
    return times


async def serve(folder: Path) -> None:
    """Run the other process: handle messages and print the time that each one took."""

    async def handle(envelope: Envelope) -> None:
        took_ms = (perf_counter_ns() - envelope.payload["sent_ns"]) / 1e6
        os.write(1, f"{took_ms}\n".encode())

    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, handle)
        os.write(1, b"ready\n")
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
