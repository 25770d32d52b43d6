"""A client that only locks: one question at a time on a bare stream, its answer parsed and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.raw_stream import RawStream
from posthouse.keys import NodeKey

LEASE_MS = 30_000
WAIT_MS = 60_000
_PATIENCE_S = 120


class LockStream(RawStream):
    """One connection with one question open."""

    def __init__(self) -> None:
        super().__init__(b"LOCKED")
        self._frames = bytearray()
        self._answer: asyncio.Future[Any] | None = None
        self._asked = 0

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
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the relay closed the stream"))

    async def ask(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of one operation."""
        self._asked += 1
        self._answer = asyncio.get_running_loop().create_future()
        self.send([msgspec.json.encode(["LOCK", f"{self._asked}", op, arguments])])
        answer: dict[str, Any] = await self._answer
        if "code" in answer:
            raise RuntimeError(f"{op}: {answer['code']}")
        return answer

    async def pairs(self, resource: str, count: int) -> None:
        """Acquire and release a resource so many times, waiting for it where others hold it."""
        for _ in range(count):
            wanted = {"resource": resource, "lease_ms": LEASE_MS, "wait_ms": WAIT_MS}
            grant = await self.ask("acquire", wanted)
            await self.ask("release", {"resource": resource, "token": grant["token"]})

    def _take(self, text: bytes) -> None:
        if not text.startswith(b'["LOCKED"') or self._answer is None:
            raise RuntimeError(f"unexpected: {text[:200]!r}")
        self._answer.set_result(msgspec.json.decode(text)[2])


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
