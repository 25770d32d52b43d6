"""Fan-out: one publish to a pattern, fifty endpoints with a handler each; deliveries per second."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.floor import Floor
from posthouse.bench.bus.terms import LIMITS, PAYLOAD, SENDER, Scale, median
from posthouse.bench.bus.throughput import Counted
from posthouse.bus import Bus

ENDPOINTS = 50


async def measure(folder: Path, scale: Scale, file_bytes: int) -> dict[str, Any]:
    """Interleave floor and fan-out; return deliveries a second and their ratio to the floor."""
    counted = Counted()
    rates: list[float] = []
    async with Bus(folder, reliability=LIMITS) as bus:
        for number in range(ENDPOINTS):
            await bus.register_endpoint(f"fan.n{number}")
        await bus.subscribe("fan.*", counted)
        floor = Floor(folder, "fan.n0", file_bytes)
        await _rate(bus, counted, 2)
        for _ in range(scale.rounds):
            floor.run()
            rates.append(await _rate(bus, counted, scale.fan_out_publishes))
    deliveries = {"endpoints": ENDPOINTS, "deliveries_per_s": round(median(rates))}
    return deliveries | floor.report() | floor.compare("", rates)


async def _rate(bus: Bus, counted: Counted, publishes: int) -> float:
    counted.expect(publishes * ENDPOINTS)
    start = perf_counter()
    for _ in range(publishes):
        await bus.publish("fan.*", PAYLOAD, from_=SENDER)
    await counted.wait()
    return publishes * ENDPOINTS / (perf_counter() - start)
