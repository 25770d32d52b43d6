"""Fan-out: events published with 64 unanswered, delivered to 100 subscribers in a third process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from posthouse.bench.relay.ingest import open_ingest
from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.terms import IN_FLIGHT, SUBSCRIBERS, Scale

_PATIENCE_S = 300


async def measure(relay: RunningRelay, scale: Scale) -> dict[str, Any]:
    """Return deliveries per second: from the first event sent until every subscriber has all of them."""
    ingest = await open_ingest(relay)
    rates: list[float] = []
    async with _subscribers(relay) as (ask, tell):
        total = 0
        for _ in range(scale.rounds + 1):
            commands = ingest.supply.commands(scale.fan_out_events)
            total += len(commands)
            started = time.perf_counter()
            tell(total)
            await ingest.rate(commands, IN_FLIGHT)
            seen = await ask()
            rates.append(len(commands) * SUBSCRIBERS / (time.perf_counter() - started))
            if seen != total * SUBSCRIBERS:
                raise RuntimeError(f"{seen} deliveries of {total * SUBSCRIBERS}")
    ingest.close()
    return {"deliveries_per_s": round(sorted(rates[1:])[len(rates[1:]) // 2]), "rounds": [round(r) for r in rates[1:]]}


@asynccontextmanager
async def _subscribers(relay: RunningRelay) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "posthouse.bench.relay.subscribers",
        relay.host,
        str(relay.port),
        str(SUBSCRIBERS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    reader, writer = process.stdout, process.stdin

    async def line() -> str:
        text = await asyncio.wait_for(reader.readline(), _PATIENCE_S)
        if not text:
            raise RuntimeError("the subscribers ended")
        return text.decode().strip()

    async def ask() -> int:
        return int(await line())

    try:
        if await line() != "ready":
            raise RuntimeError("the subscribers did not come up")
        yield ask, lambda wanted: writer.write(f"{wanted}\n".encode())
    finally:
        writer.close()
        await process.wait()
