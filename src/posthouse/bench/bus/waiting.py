"""Publishing into a mailbox where ten thousand messages wait, next to an empty one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

from posthouse.bench.bus.terms import LIMITS, PAYLOAD, SENDER, Scale, median, median_ratio
from posthouse.bus import Bus

_BATCH = 200
_FULL = "waiting.full"


async def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Alternate batches into a full and into fresh empty mailboxes; nobody subscribes to either."""
    empty: list[float] = []
    full: list[float] = []
    async with Bus(folder, reliability=LIMITS) as bus:
        await bus.register_endpoint(_FULL)
        await fill(bus, _FULL, scale.waiting)
        for number in range(scale.rounds * 2):
            fresh = f"waiting.empty{number}"
            await bus.register_endpoint(fresh)
            empty.append(await _rate(bus, fresh))
            full.append(await _rate(bus, _FULL))
    return {
        "waiting": scale.waiting,
        "publish_empty_per_s": round(median(empty)),
        "publish_full_per_s": round(median(full)),
        "ratio": median_ratio(full, empty),
    }


async def fill(bus: Bus, subject: str, count: int) -> None:
    """Publish many messages, many at a time."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await bus.publish(subject, PAYLOAD, from_=SENDER)

    await asyncio.gather(*(worker() for _ in range(64)))


async def _rate(bus: Bus, subject: str) -> float:
    start = perf_counter()
    for _ in range(_BATCH):
        await bus.publish(subject, PAYLOAD, from_=SENDER)
    return _BATCH / (perf_counter() - start)
