"""Fan-out of a relay: events published with 64 unanswered, delivered to 100 subscribers in a third process.

    python -m bench.relay_fan_out HOST PORT COUNT

runs the subscribers: it counts events in the received bytes without parsing them. It prints `ready` when every
subscriber has received EOSE. It answers each line `N` on stdin once every subscriber has N events in total, and exits
at the end of stdin.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bench.processes import RelayProcess, run_module
from bench.raw_stream import RawStream, open_publisher, open_raw
from bench.scales import IN_FLIGHT, KIND, SUBSCRIBERS, RelayScale
from posthouse.keys import NodeKey

_TIMEOUT_S = 300


async def measure_fan_out(relay: RelayProcess, scale: RelayScale) -> dict[str, Any]:
    """Return deliveries per second, from the first event sent until every subscriber has all events."""
    publisher = await open_publisher(relay)
    rates: list[float] = []
    arguments = (relay.host, str(relay.port), str(SUBSCRIBERS))
    async with fan_out_process("bench.relay_fan_out", *arguments) as counts:
        total = 0
        for _ in range(scale.rounds + 1):
            commands = publisher.source.commands(scale.fan_out_events)
            total += len(commands)
            started = time.perf_counter()
            counts.expect(total)
            await publisher.rate(commands, IN_FLIGHT)
            seen = await counts.delivered()
            rates.append(len(commands) * SUBSCRIBERS / (time.perf_counter() - started))
            if seen != total * SUBSCRIBERS:
                raise RuntimeError(f"{seen} deliveries of {total * SUBSCRIBERS}")
    publisher.close()
    return {"deliveries_per_s": round(sorted(rates[1:])[len(rates[1:]) // 2]), "rounds": [round(r) for r in rates[1:]]}


class FanOutCounts:
    """The lines to and from a process of subscribers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._reader, self._writer = process.stdout, process.stdin

    def expect(self, total: int) -> None:
        """Ask for an answer once every subscriber has this many events in total."""
        self._writer.write(f"{total}\n".encode())

    async def delivered(self) -> int:
        """Wait for that answer: the deliveries to all subscribers."""
        return int(await self.line())

    async def line(self) -> str:
        """Return the next line of the process."""
        text = await asyncio.wait_for(self._reader.readline(), _TIMEOUT_S)
        if not text:
            raise RuntimeError("the subscribers ended")
        return text.decode().strip()

    def end(self) -> None:
        """Let the process exit."""
        self._writer.close()


@asynccontextmanager
async def fan_out_process(module: str, *arguments: str) -> AsyncIterator[FanOutCounts]:
    """Run a module that calls `answer_counts` until the block ends."""
    process = await run_module(module, *arguments)
    counts = FanOutCounts(process)
    try:
        if await counts.line() != "ready":
            raise RuntimeError("the subscribers did not start")
        yield counts
    finally:
        counts.end()
        await process.wait()


EVENT = b'["EVENT","s",'
_REQ = b'["REQ","s",{"limit":0},{"kinds":[%d]}]' % KIND


async def subscribe(host: str, port: int) -> RawStream:
    """Open one subscriber and wait until it receives live events."""
    stream = await open_raw(host, port, NodeKey.generate(), b'["EOSE"')
    stream.send([_REQ])
    await stream.wait_count(1)
    stream.count_from_now(EVENT)
    return stream


async def serve(host: str, port: int, count: int) -> None:
    """Subscribe, and answer the lines on stdin."""
    await answer_counts([await subscribe(host, port) for _ in range(count)])


async def answer_counts(streams: Sequence[RawStream]) -> None:
    """Answer the lines on stdin for subscribers that receive live events."""
    _print("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = int(line)
        await asyncio.gather(*(stream.wait_count(wanted) for stream in streams))
        _print(str(sum(stream.count for stream in streams)))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
