"""Messages published and handled per second, one subscriber: one by one, and with 64 in flight.

One by one: each publish begins when the former returned. In flight: 64 publishes are never done at the same time. Both
times end when all messages are handled. Beside them, for comparison, the same where a publisher waits until its
message is handled: the messages then come in one at a time, and nothing can be done for several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.floor import Floor
from posthouse.bench.bus.terms import LIMITS, PAYLOAD, SENDER, SUBJECT, Scale, median
from posthouse.bus import Bus
from posthouse.model.envelope import Envelope

IN_FLIGHT = 64
FLIGHT_SUBJECT = "bench.in_flight"


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
    """Keep 64 publishes going; what is published waits for its handler as long as it takes."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


class InFlight:
    """Keeps 64 messages between the call of their publish and their handler."""

    def __init__(self) -> None:
        self._handled: dict[int, asyncio.Future[None]] = {}

    async def __call__(self, envelope: Envelope) -> None:
        self._handled.pop(envelope.payload["n"]).set_result(None)

    async def rate(self, bus: Bus, count: int) -> float:
        """Return how many messages a second are published and handled."""
        loop, left = asyncio.get_running_loop(), iter(range(count))

        async def worker() -> None:
            for number in left:
                handled = self._handled[number] = loop.create_future()
                await bus.publish(FLIGHT_SUBJECT, PAYLOAD | {"n": number}, from_=SENDER)
                await handled

        start = perf_counter()
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        return count / (perf_counter() - start)


@dataclass
class Rates:
    """Messages a second of every round."""

    one_by_one: list[float] = field(default_factory=list)
    in_flight_64: list[float] = field(default_factory=list)
    one_until_handled: list[float] = field(default_factory=list)
    in_flight_64_until_handled: list[float] = field(default_factory=list)


async def measure(folder: Path, scale: Scale, file_bytes: int) -> dict[str, Any]:
    """Let floor and bus take turns; return rates and the middle of the rounds' ratios to the floor."""
    rates, counted, in_flight = Rates(), Counted(), InFlight()
    async with Bus(folder, reliability=LIMITS) as bus:
        for subject, handler in ((SUBJECT, counted), (FLIGHT_SUBJECT, in_flight)):
            await bus.register_endpoint(subject)
            await bus.subscribe(subject, handler)
        floor = Floor(folder, SUBJECT, file_bytes)
        await _rate(bus, counted, publish_together, scale.messages)
        for _ in range(scale.rounds):
            floor.run()
            rates.one_by_one.append(await _rate(bus, counted, publish_singly, scale.messages))
            rates.in_flight_64.append(await _rate(bus, counted, publish_together, scale.messages))
            rates.one_until_handled.append(await _lockstep_rate(bus, counted, scale.messages // 4))
            rates.in_flight_64_until_handled.append(await in_flight.rate(bus, scale.messages // 4))
    return _report(rates, floor)


def _report(rates: Rates, floor: Floor) -> dict[str, Any]:
    report = floor.report()
    for kind in fields(rates):
        measured = getattr(rates, kind.name)
        report |= {f"{kind.name}_per_s": round(median(measured))} | floor.compare(kind.name, measured)
    return report


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
