"""A bare WebSocket client, signed events for it, and publishing at a fixed number of unanswered events.

The client counts markers in the received bytes and parses nothing: a client that parsed JSON would be the slower half
of every measurement. Frames are masked with the key zero, which is legal and leaves the bytes unchanged. Events are
signed before the clock starts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from bench.processes import RelayProcess
from bench.scales import KIND
from posthouse.client.stream.frames import write_command
from posthouse.client.trust.signing import Signer, sign_event
from posthouse.keys import NodeKey
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event, encode_event

_MASKED = 0x80
_NO_MASK = bytes(4)
_TIMEOUT_S = 120


class RawStream(asyncio.Protocol):
    """One connection to a relay."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._kept = len(marker) - 1
        self._tail = b""
        self._greeting: bytearray | None = bytearray()
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self._wanted = 0
        #: markers seen
        self.count = 0
        #: called with the count as soon as bytes arrive, without waking a task
        self.on_count: Callable[[int], None] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            self._greeting += data
            self._changed.set()
            return
        self.count += (self._tail + data).count(self._marker)
        self._tail = data[-self._kept :] if len(data) >= self._kept else (self._tail + data)[-self._kept :]
        if self.on_count is not None:
            self.on_count(self.count)
        if self.count >= self._wanted:
            self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._changed.set()

    async def wait_count(self, wanted: int) -> int:
        """Wait until the count reaches `wanted`, and return it."""
        while self.count < wanted:
            if self.is_lost:
                raise ConnectionError(f"the relay closed the stream after {self.count} of {wanted}")
            self._wanted = wanted
            self._changed.clear()
            await self._changed.wait()
        return self.count

    def count_from_now(self, marker: bytes) -> None:
        """Count another marker, from zero."""
        self._marker, self._kept, self._tail, self.count = marker, len(marker) - 1, b"", 0

    def send(self, commands: Sequence[bytes]) -> None:
        """Send commands as one frame."""
        assert self._transport is not None
        text = commands[0] if len(commands) == 1 else b"[" + b",".join(commands) + b"]"
        self._transport.write(_frame(text))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def upgrade(self, host: str, port: int) -> None:
        """Upgrade the connection to a WebSocket."""
        key = base64.b64encode(bytes(16)).decode()
        lines = [
            "GET /v1/stream HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        assert self._transport is not None
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = await self._until(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode())

    async def authenticate(self, key: NodeKey) -> None:
        """Answer HELLO; after AUTHED the stream only counts markers."""
        hello = await self._command()
        proof = Signer(key, SystemClock()).prove(hello[1]["relay"], ("challenge", hello[1]["challenge"]))
        assert self._transport is not None
        self._transport.write(_frame(write_command("AUTH", proof)))
        authed = await self._command()
        if authed[0] != "AUTHED":
            raise ConnectionError(str(authed))
        assert self._greeting is not None
        rest, self._greeting = bytes(self._greeting), None
        self.data_received(rest)

    async def _command(self) -> list[Any]:
        head = await self._at_least(2)
        size, start = head[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes((await self._at_least(4))[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes((await self._at_least(10))[2:10], "big"), 10
        data = await self._at_least(start + size)
        value: list[Any] = json.loads(data[start : start + size])
        assert self._greeting is not None
        del self._greeting[: start + size]
        return value

    async def _at_least(self, size: int) -> bytes:
        assert self._greeting is not None
        async with asyncio.timeout(_TIMEOUT_S):
            while len(self._greeting) < size:
                await self._more()
        return bytes(self._greeting)

    async def _until(self, end: bytes) -> bytes:
        assert self._greeting is not None
        async with asyncio.timeout(_TIMEOUT_S):
            while (at := self._greeting.find(end)) < 0:
                await self._more()
        head = bytes(self._greeting[:at])
        del self._greeting[: at + len(end)]
        return head

    async def _more(self) -> None:
        if self.is_lost:
            raise ConnectionError("the relay closed the connection")
        self._changed.clear()
        await self._changed.wait()


async def open_raw(host: str, port: int, key: NodeKey, marker: bytes) -> RawStream:
    """Connect, authenticate, and count `marker` in all bytes after that."""
    _, stream = await asyncio.get_running_loop().create_connection(lambda: RawStream(marker), host, port)
    await stream.upgrade(host, port)
    await stream.authenticate(key)
    return stream


def _frame(text: bytes) -> bytes:
    size = len(text)
    if size < 126:
        return bytes((0x81, _MASKED | size)) + _NO_MASK + text
    if size < 65_536:
        return bytes((0x81, _MASKED | 126)) + size.to_bytes(2, "big") + _NO_MASK + text
    return bytes((0x81, _MASKED | 127)) + size.to_bytes(8, "big") + _NO_MASK + text


_CONTENT = "x" * 200


class EventSource:
    """Signs events with one key; no two are equal."""

    def __init__(self, key: NodeKey | None = None) -> None:
        self.key = key or NodeKey.generate()
        self._at_ns = SystemClock().wall_ns()

    def take(self, count: int, tag: str = "bench") -> list[Event]:
        """Return new events of about 500 bytes of JSON each."""
        return [self._sign(number, tag) for number in range(count)]

    def commands(self, count: int, tag: str = "bench") -> list[bytes]:
        """Return new events as EVENT commands."""
        return [b'["EVENT",%b]' % encode_event(event) for event in self.take(count, tag)]

    def _sign(self, number: int, tag: str) -> Event:
        self._at_ns += 1
        return sign_event(self.key, KIND, _CONTENT, (("t", tag), ("n", str(number))), self._at_ns)


ACCEPTED = b',"duplicate":false'


class Publisher:
    """Publishes to a relay over one stream."""

    def __init__(self, stream: RawStream, source: EventSource) -> None:
        self._stream = stream
        self.source = source

    async def rate(self, commands: list[bytes], in_flight: int) -> float:
        """Send the commands with this many in flight and return accepted events per second."""
        stream, total = self._stream, len(commands)
        before, sent = stream.count, 0

        def send_next(count: int) -> None:
            nonlocal sent
            upto = min(count - before + in_flight, total)
            if upto > sent:
                stream.send(commands[sent:upto])
                sent = upto

        stream.on_count = send_next
        started = time.perf_counter()
        send_next(before)
        await stream.wait_count(before + total)
        stream.on_count = None
        return total / (time.perf_counter() - started)

    def close(self) -> None:
        self._stream.close()


async def open_publisher(relay: RelayProcess, source: EventSource | None = None) -> Publisher:
    """Open a publisher with the key of a source, by default a new one."""
    source = source or EventSource()
    return Publisher(await open_raw(relay.host, relay.port, source.key, ACCEPTED), source)
