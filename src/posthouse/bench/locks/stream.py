"""A client that only locks: one question at a time on a bare stream, its answer parsed and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.raw_stream import RawStream
from posthouse.keys import NodeKey

LEASE_MS = 30_000
_PATIENCE_S = 120


class LockStream(RawStream):
    """One connection with one question open."""

    def __init__(self) -> None:
        super().__init__(b"LOCKED")
        self._frames = bytearray()
        self._done: asyncio.Future[None] | None = None
        self._asked = 0
        self._resource = ""
        self._left = 0
        self._wait_ms = 0
        self._is_held = False

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            super().data_received(data)
            return
        self._frames += data
        while (size := _frame_size(self._frames)) is not None:
            start, end = size
            self._take(bytes(self._frames[start:end]))
            del self._frames[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the relay closed the stream"))

    async def pairs(self, resource: str, count: int, wait_ms: int) -> None:
        """Acquire and release a resource so many times, waiting for it where others hold it."""
        if not count:
            return
        self._resource, self._left, self._wait_ms = resource, count, wait_ms
        self._done = asyncio.get_running_loop().create_future()
        self._acquire()
        await self._done

    def _acquire(self) -> None:
        self._ask("acquire", {"resource": self._resource, "lease_ms": LEASE_MS, "wait_ms": self._wait_ms})

    def _ask(self, op: str, arguments: dict[str, Any]) -> None:
        self._asked += 1
        self.send([msgspec.json.encode(["LOCK", f"{self._asked}", op, arguments])])

    def _take(self, text: bytes) -> None:
        """Ask the next question as soon as the last is answered: no task has to wake up in between."""
        done = self._done
        if not text.startswith(b'["LOCKED"') or done is None or done.done():
            raise RuntimeError(f"unexpected: {text[:200]!r}")
        answer = msgspec.json.decode(text)[2]
        if "code" in answer:
            done.set_exception(RuntimeError(f"{self._resource}: {answer['code']}"))
        elif not self._is_held:
            self._is_held = True
            self._ask("release", {"resource": self._resource, "token": answer["token"]})
        else:
            self._count_pair(done)

    def _count_pair(self, done: asyncio.Future[None]) -> None:
        self._is_held = False
        self._left -= 1
        if self._left:
            self._acquire()
        else:
            done.set_result(None)


async def open_lock_stream(relay: RunningRelay) -> LockStream:
    """Connect and authenticate with a key of its own."""
    async with asyncio.timeout(_PATIENCE_S):
        _, stream = await asyncio.get_running_loop().create_connection(LockStream, relay.host, relay.port)
        await stream.upgrade(relay.host, relay.port)
        await stream.authenticate(NodeKey.generate())
    return stream


def _frame_size(data: bytearray) -> tuple[int, int] | None:
    """Return where the text of the first frame begins and ends, None while it is not whole."""
    if len(data) < 4:
        return None
    size, start = data[1], 2
    if size == 126:
        size, start = int.from_bytes(data[2:4], "big"), 4
    return (start, start + size) if len(data) >= start + size else None
