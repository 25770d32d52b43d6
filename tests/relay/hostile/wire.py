"""A plain socket to a relay, for bytes that no library would send."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.relay.edge import PATIENCE_S, Edge


@dataclass
class Wire:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_all(self) -> bytes:
        """Return everything until the relay closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""

    async def response(self) -> tuple[int, dict[str, Any]]:
        """Return the status and the problem of one HTTP response."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ")[1])
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await self.reader.readexactly(int(headers["content-length"]))
        assert "problem+json" in headers["content-type"] or status < 400, head
        return status, json.loads(body)

    async def upgrade(self) -> None:
        """Become a WebSocket and read HELLO."""
        key = base64.b64encode(b"0123456789abcdef").decode()
        await self.send(
            f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        assert (await self.frame())[1].startswith(b'["HELLO"')

    async def frame(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame."""
        async with asyncio.timeout(PATIENCE_S):
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(size)

    async def close_code(self) -> int:
        """Return the code of the next close frame, skipping other frames."""
        while True:
            opcode, payload = await self.frame()
            if opcode == 8:
                return int(struct.unpack("!H", payload[:2])[0])


def masked(payload: bytes, first: int = 0x81) -> bytes:
    """Return a client's frame; the mask is zero, so that the payload can be read on the wire."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


@asynccontextmanager
async def wire(edge: Edge) -> AsyncIterator[Wire]:
    """Open a plain connection to a relay."""
    place = edge.server.address
    reader, writer = await asyncio.open_connection(place.host, place.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
