"""Fan-out of a relay: events published with 64 unanswered, delivered to 100 subscribers in a third process.

    python -m bench.relay_fan_out HOST PORT COUNT

is that process: it counts events in the bytes and parses nothing. It prints `ready` when every subscriber has seen
EOSE. Each line `N` on stdin is answered once every subscriber has seen N events in total; end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bench.processes import RunningRelay
from bench.raw_stream import RawStream, open_ingest, open_raw
from bench.scales import IN_FLIGHT, KIND, SUBSCRIBERS, RelayScale
from posthouse.keys import NodeKey

_PATIENCE_S = 300


async def measure_fan_out(relay: RunningRelay, scale: RelayScale) -> dict[str, Any]:
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
        "bench.relay_fan_out",
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


EVENT = b'["EVENT","s",'
_REQ = b'["REQ","s",{"limit":0},{"kinds":[%d]}]' % KIND


async def subscribe(host: str, port: int) -> RawStream:
    """Open one subscriber and wait until it is live."""
    stream = await open_raw(host, port, NodeKey.generate(), b'["EOSE"')
    stream.send([_REQ])
    await stream.wait_count(1)
    stream.count_from_now(EVENT)
    return stream


async def serve(host: str, port: int, count: int) -> None:
    """Answer the lines on stdin."""
    streams = [await subscribe(host, port) for _ in range(count)]
    _say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = int(line)
        await asyncio.gather(*(stream.wait_count(wanted) for stream in streams))
        _say(str(sum(stream.count for stream in streams)))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
