"""Messages per second through the bus, compared with the bare file operations of one message.

The floor is the work that a Maildir cannot avoid: create and write, rename, rename, unlink, in the directories of a
mailbox of the measured bus, because ext4 allocates inodes by directory. An ext4 without a journal slows down with
every deleted file, so floor rounds are short, and the ratios to the fastest round and to overwriting one file are
reported too. Measured: one publish at a time, 64 in flight, both until handled, and fan-out to fifty endpoints.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.comparison import median
from bench.scales import BUS_LIMITS, IN_FLIGHT, PAYLOAD, SENDER, SUBJECT, BusScale
from posthouse.bus import Bus
from posthouse.bus.data_directory import endpoint_hash
from posthouse.model.envelope import Envelope

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OVERWRITE = os.O_WRONLY | os.O_CLOEXEC
_ROUND = 100  # messages, about 5 ms: few enough that their deletion does not slow down later rounds


class Floor:
    """The bare file operations in the directories of one mailbox."""

    def __init__(self, root: Path, subject: str, file_bytes: int) -> None:
        folder = root / "mailboxes" / endpoint_hash(subject)
        self.data = b"x" * file_bytes
        self._tmp, self._new, self._cur = (f"{folder / name}/" for name in ("tmp", "failed", "cur"))
        self._written = 0
        #: messages per second of every round: creating and removing files, and overwriting one file
        self.rates: list[float] = []
        self.reusing_rates: list[float] = []

    def run(self) -> None:
        """Measure one round of each kind."""
        self.rates.append(self._rate())
        self.reusing_rates.append(self._reusing_rate())

    def report(self) -> dict[str, Any]:
        return {
            "floor_per_s": round(median(self.rates)),
            "fastest_floor_per_s": round(max(self.rates)),
            "reusing_floor_per_s": round(median(self.reusing_rates)),
        }

    def compare(self, name: str, rates: Sequence[float]) -> dict[str, Any]:
        """Return the ratios of rates to the floor per round, to the fastest floor and to the reusing floor."""
        ratios = [mine / other for mine, other in zip(rates, self.rates, strict=True)]
        reusing = [mine / other for mine, other in zip(rates, self.reusing_rates, strict=True)]
        prefix = f"{name}_" if name else ""
        return {
            f"{prefix}ratio": round(median(ratios), 3),
            f"{prefix}ratio_to_fastest_floor": round(median(rates) / max(self.rates), 3),
            f"{prefix}ratio_to_reusing_floor": round(median(reusing), 3),
        }

    def store_messages(self, count: int) -> None:
        """Do the file operations of this many messages."""
        for number in range(self._written, self._written + count):
            name = f"floor-{number:020d}"
            fd = os.open(self._tmp + name, _CREATE, 0o600)
            os.write(fd, self.data)
            os.close(fd)
            os.rename(self._tmp + name, self._new + name)  # noqa: PTH104 - the bare steps
            os.rename(self._new + name, self._cur + name)  # noqa: PTH104 - the bare steps
            os.unlink(self._cur + name)  # noqa: PTH108 - the bare steps
        self._written += count

    def _rate(self) -> float:
        start = perf_counter()
        self.store_messages(_ROUND)
        return _ROUND / (perf_counter() - start)

    def _reusing_rate(self) -> float:
        spare = f"{self._tmp}floor-spare"
        os.close(os.open(spare, _CREATE, 0o600))
        start = perf_counter()
        for number in range(_ROUND):
            name = f"floor-{number:020d}"
            fd = os.open(spare, _OVERWRITE)
            os.write(fd, self.data)
            os.close(fd)
            os.rename(spare, self._new + name)  # noqa: PTH104 - the bare steps
            os.rename(self._new + name, self._cur + name)  # noqa: PTH104 - the bare steps
            os.rename(self._cur + name, spare)  # noqa: PTH104 - the bare steps
        rate = _ROUND / (perf_counter() - start)
        os.unlink(spare)  # noqa: PTH108 - the bare steps
        return rate


FLIGHT_SUBJECT = "bench.in_flight"


class Counted:
    """A handler that counts messages and announces when it has seen the expected number."""

    def __init__(self) -> None:
        self.seen = 0
        self._expected = 0
        self._reached = asyncio.Event()

    async def __call__(self, _envelope: Envelope) -> None:
        self.seen += 1
        if self.seen >= self._expected:
            self._reached.set()

    def expect(self, count: int) -> None:
        """Expect `count` more messages."""
        self._expected = self.seen + count
        self._reached.clear()

    async def wait(self) -> None:
        await self._reached.wait()


async def publish_singly(bus: Bus, count: int) -> None:
    """Publish one message after the other."""
    for _ in range(count):
        await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)


async def publish_together(bus: Bus, count: int) -> None:
    """Keep 64 publishes in flight, without waiting for the handler."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


class InFlight:
    """Keeps 64 messages in flight between publish and handler."""

    def __init__(self) -> None:
        self._handled: dict[int, asyncio.Future[None]] = {}

    async def __call__(self, envelope: Envelope) -> None:
        self._handled.pop(envelope.payload["n"]).set_result(None)

    async def rate(self, bus: Bus, count: int) -> float:
        """Return messages per second that are published and handled."""
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
    """Messages per second of every round."""

    one_by_one: list[float] = field(default_factory=list)
    in_flight_64: list[float] = field(default_factory=list)
    one_until_handled: list[float] = field(default_factory=list)
    in_flight_64_until_handled: list[float] = field(default_factory=list)


async def measure_throughput(folder: Path, scale: BusScale, file_bytes: int) -> dict[str, Any]:
    """Alternate floor and bus; return rates and the median of the rounds' ratios to the floor."""
    rates, counted, in_flight = Rates(), Counted(), InFlight()
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
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


ENDPOINTS = 50


async def measure_fan_out(folder: Path, scale: BusScale, file_bytes: int) -> dict[str, Any]:
    """Alternate floor and fan-out; return deliveries per second and their ratio to the floor."""
    counted = Counted()
    rates: list[float] = []
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        for number in range(ENDPOINTS):
            await bus.register_endpoint(f"fan.n{number}")
        await bus.subscribe("fan.*", counted)
        floor = Floor(folder, "fan.n0", file_bytes)
        await _fan_out_rate(bus, counted, 2)
        for _ in range(scale.rounds):
            floor.run()
            rates.append(await _fan_out_rate(bus, counted, scale.fan_out_publishes))
    deliveries = {"endpoints": ENDPOINTS, "deliveries_per_s": round(median(rates))}
    return deliveries | floor.report() | floor.compare("", rates)


async def _fan_out_rate(bus: Bus, counted: Counted, publishes: int) -> float:
    counted.expect(publishes * ENDPOINTS)
    start = perf_counter()
    for _ in range(publishes):
        await bus.publish("fan.*", PAYLOAD, from_=SENDER)
    await counted.wait()
    return publishes * ENDPOINTS / (perf_counter() - start)
