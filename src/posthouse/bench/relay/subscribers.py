"""Many raw subscribers in a process of their own: counts events in the bytes, parses nothing.

    python -m posthouse.bench.relay.subscribers HOST PORT COUNT

Says `ready` when all of them have seen EOSE. Then each line `N` on stdin is answered by a line once every subscriber
has seen N events in total; the end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from posthouse.bench.relay.raw_stream import RawStream, open_raw
from posthouse.bench.relay.terms import KIND
from posthouse.keys import NodeKey

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
