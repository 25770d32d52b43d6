"""How long a message takes from a program on one host to a program on another, when nothing else happens.

From before the POST at one daemon until the event of the other says that the message is in its inbox.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from posthouse.bench.send.process import RunningDaemon
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient

_PATIENCE_S = 30
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
    async with asyncio.timeout(_PATIENCE_S):
        while await arrived.get() != f"letter {number}":
            pass
    return (time.perf_counter() - started) * 1000
