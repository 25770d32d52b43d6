"""Publishing into a mailbox where ten thousand messages wait, next to an empty one; nobody subscribes to either.

Before each round as many messages are acknowledged as it publishes, in both mailboxes: their files are written over, so
that neither round creates one. What it costs to create a file depends on what was deleted in that region of the disk
before, not on what waits, and differs between two mailboxes by a factor. The index, which works a moment behind, is let
catch up before each round, so that it works in none. Beside it the rates of mailboxes that only grow are told; nothing
is decided by them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.terms import LIMITS, PAYLOAD, SENDER, Scale, median, median_ratio
from posthouse.bus import Bus

_BATCH = 200
_FULL, _EMPTY, _GROWING = "waiting.full", "waiting.empty", "waiting.growing"


async def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Alternate batches into a full and into an empty mailbox, first where both grow, then where both are acked."""
    async with Bus(folder, reliability=LIMITS) as bus:
        for subject in (_FULL, _EMPTY):
            await bus.register_endpoint(subject)
        await fill(bus, _FULL, scale.waiting)
        growing = await _grow(bus, scale.rounds)
        empty, full = await _take_turns(bus, scale.rounds * 2)
    return {
        "waiting": scale.waiting,
        "publish_empty_per_s": round(median(empty)),
        "publish_full_per_s": round(median(full)),
        "ratio": median_ratio(full, empty),
        "growing_empty_per_s": round(median(growing[0])),
        "growing_full_per_s": round(median(growing[1])),
        "growing_ratio": median_ratio(growing[1], growing[0]),
    }


async def _grow(bus: Bus, rounds: int) -> tuple[list[float], list[float]]:
    """Publish into fresh mailboxes and the full one; return the rates of both."""
    empty: list[float] = []
    full: list[float] = []
    for number in range(rounds):
        fresh = f"{_GROWING}{number}"
        await bus.register_endpoint(fresh)
        empty.append(await _rate(bus, fresh))
        full.append(await _rate(bus, _FULL))
    return empty, full


async def _take_turns(bus: Bus, rounds: int) -> tuple[list[float], list[float]]:
    """Publish as many as were acknowledged before, in both mailboxes, each first every other time."""
    rates: dict[str, list[float]] = {_EMPTY: [], _FULL: []}
    await fill(bus, _EMPTY, _BATCH)
    for number in range(rounds):
        for subject in (_EMPTY, _FULL) if number % 2 else (_FULL, _EMPTY):
            await _acknowledge(bus, subject)
            await bus.metrics()
            rates[subject].append(await _rate(bus, subject))
    return rates[_EMPTY], rates[_FULL]


async def fill(bus: Bus, subject: str, count: int) -> None:
    """Publish many messages, many at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(subject, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(64)))


async def _acknowledge(bus: Bus, subject: str) -> None:
    """End a batch of the oldest messages."""
    for envelope in await bus.read_inbox(subject, _BATCH):
        await bus.ack(subject, envelope.id)


async def _rate(bus: Bus, subject: str) -> float:
    start = perf_counter()
    for _ in range(_BATCH):
        await bus.publish(subject, PAYLOAD, from_=SENDER)
    return _BATCH / (perf_counter() - start)
