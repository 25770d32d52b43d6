"""Messages published and handled per second, one subscriber: one by one, and with 64 in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.floor import Floor
from posthouse.bench.bus.terms import LIMITS, PAYLOAD, SENDER, SUBJECT, Scale, median, median_ratio
from posthouse.bus import Bus
from posthouse.model.envelope import Envelope

IN_FLIGHT = 64


class Counted:
    """A handler that tells when it has seen as many messages as were sent."""

    def __init__(self) -> None:
        self.seen = 0
        self._goal = 0
        self._reached = asyncio.Event()

    async def __call__(self, _envelope: Envelope) -> None:
        self.seen += 1
        if self.seen >= self._goal:
            self._reached.set()

    def expect(self, count: int) -> None:
        """Set the goal: `count` more messages."""
        self._goal = self.seen + count
        self._reached.clear()

    async def wait(self) -> None:
        await self._reached.wait()


async def publish_singly(bus: Bus, count: int) -> None:
    """Publish one after the other."""
    for _ in range(count):
        await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)


async def publish_together(bus: Bus, count: int) -> None:
    """Keep 64 publishes in flight."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def measure(folder: Path, scale: Scale, file_bytes: int) -> dict[str, Any]:
    """Let floor, one by one and 64 in flight take turns; return rates and the middle of the rounds' ratios."""
    counted = Counted()
    floors: list[float] = []
    singly: list[float] = []
    lockstep: list[float] = []
    together: list[float] = []
    crowded: list[float] = []
    async with Bus(folder, reliability=LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, counted)
        floor = Floor(folder, SUBJECT, file_bytes)
        await _rate(bus, counted, publish_together, scale.messages)
        for _ in range(scale.rounds):
            singly.append(await _rate(bus, counted, publish_singly, scale.messages))
            floors.append(floor.rate(scale.messages))
            together.append(await _rate(bus, counted, publish_together, scale.messages))
            crowded.append(floor.rate(scale.messages, alive=IN_FLIGHT))
            lockstep.append(await _lockstep_rate(bus, counted, scale.messages // 4))
    return {
        "floor_per_s": round(median(floors)),
        "one_by_one_per_s": round(median(singly)),
        "one_by_one_ratio": median_ratio(singly, floors),
        "in_flight_64_per_s": round(median(together)),
        "in_flight_64_ratio": median_ratio(together, floors),
        "floor_with_64_alive_per_s": round(median(crowded)),
        "in_flight_64_ratio_to_floor_with_64_alive": median_ratio(together, crowded),
        "each_handled_before_the_next_per_s": round(median(lockstep)),
        "each_handled_before_the_next_ratio": median_ratio(lockstep, floors),
    }


async def _rate(bus: Bus, counted: Counted, publish: Callable[[Bus, int], Awaitable[None]], count: int) -> float:
    counted.expect(count)
    start = perf_counter()
    await publish(bus, count)
    await counted.wait()
    return count / (perf_counter() - start)


async def _lockstep_rate(bus: Bus, counted: Counted, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        counted.expect(1)
        await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)
        await counted.wait()
    return count / (perf_counter() - start)
