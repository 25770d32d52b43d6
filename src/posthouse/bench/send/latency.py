"""How long a message takes from a program on one host to a program on another, when nothing else happens.

From before the POST at one daemon until the event of the other says that the message is in its inbox.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

from posthouse.bench.send.process import RunningDaemon
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient, DaemonEvent

_PATIENCE_S = 30


async def measure_latency(sender: RunningDaemon, reader: RunningDaemon, letters: int) -> dict[str, Any]:
    """Send letters one after the other and return the times."""
    async with DaemonClient(sender.directory) as here, DaemonClient(reader.directory) as there:
        arrivals = there.events()
        await _first(here, arrivals, reader.node)
        times_ms = [await _travel(here, arrivals, reader.node, number) for number in range(letters)]
    ordered = sorted(times_ms)
    return {
        "p50_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "letters": letters,
    }


async def _first(here: AsyncDaemonClient, arrivals: AsyncIterator[DaemonEvent], to: str) -> None:
    """Send until one comes through: the stream of events is open from then on."""
    listening = asyncio.ensure_future(_message(arrivals))
    number = 0
    while not listening.done():
        await here.send(to, f"first {number}")
        number += 1
        await asyncio.wait([listening], timeout=1)
    while True:  # what else was sent before the stream was open
        try:
            await asyncio.wait_for(_message(arrivals), 1)
        except TimeoutError:
            return


async def _travel(here: AsyncDaemonClient, arrivals: AsyncIterator[DaemonEvent], to: str, number: int) -> float:
    started = time.perf_counter()
    await here.send(to, f"letter {number}")
    await asyncio.wait_for(_message(arrivals), _PATIENCE_S)
    return (time.perf_counter() - started) * 1000


async def _message(arrivals: AsyncIterator[DaemonEvent]) -> DaemonEvent:
    while True:
        event = await anext(arrivals)
        if event.event == "message":
            return event
