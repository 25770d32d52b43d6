"""Sends over bare connections: HTTP written by hand, so that the client is not what is measured.

Each connection has one request on its way; the requests are made before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from posthouse.bench.send.terms import BODY_CHARS

_NUMBERS = count()
_BODY = "x" * BODY_CHARS


def make_requests(destinations: Sequence[str], number: int) -> list[bytes]:
    """Return sends to the destinations in turn, each with an id of its own."""
    return [_request(destinations[each % len(destinations)]) for each in range(number)]


def _request(to: str) -> bytes:
    body = json.dumps({"to": to, "message": _BODY, "client_message_id": f"bench-{next(_NUMBERS)}"}).encode()
    head = f"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Senders:
    """Some connections to one daemon."""

    def __init__(self, connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._connections = connections
        #: sends that were answered, for whoever looks while they run
        self.answered = 0

    async def rate(self, requests: Sequence[bytes]) -> float:
        """Send everything and return how many per second; anything but 202 is a failure of the measurement."""
        left = iter(requests)
        started = time.perf_counter()
        await asyncio.gather(*(self._work(reader, writer, left) for reader, writer in self._connections))
        return len(requests) / (time.perf_counter() - started)

    async def _work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: object) -> None:
        for request in left:  # type: ignore[attr-defined]
            writer.write(request)
            await _take_answer(reader)
            self.answered += 1

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()


async def open_senders(socket: Path, number: int) -> Senders:
    """Open so many connections."""
    return Senders([await asyncio.open_unix_connection(str(socket)) for _ in range(number)])


async def _take_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"http/1.1 202"):
        raise RuntimeError(f"the daemon answered {head[:12]!r}: {body[:200]!r}")
