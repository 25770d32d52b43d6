"""A wire between reader and relay that is cut after so many bytes from the relay, wherever in a frame that is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wire:
    """Passes bytes on; what `cut_after` allows of a connection may pass, then it ends without a word."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._cut_after: int | None = None
        self._passed = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = asyncio.Event()
        self.url = ""

    async def cut_after(self, size: int) -> None:
        """Let so many more bytes come from the relay, then end every connection; returns once that has happened."""
        self._passed, self._cut_after = 0, size
        self._is_cut.clear()
        await self._is_cut.wait()

    def cut(self) -> None:
        """End every connection now."""
        self._cut_after = None
        for writer in self._writers:
            writer.transport.abort()
        self._is_cut.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        with contextlib.suppress(OSError):
            from_relay, to_relay = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, to_relay}
            try:
                ways = [
                    asyncio.create_task(self._carry(reader, to_relay)),
                    asyncio.create_task(self._back(from_relay, writer)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                self._writers -= {writer, to_relay}
                to_relay.transport.abort()
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2_048):
            allowed = data if self._cut_after is None else data[: max(0, self._cut_after - self._passed)]
            self._passed += len(allowed)
            writer.write(allowed)
            await writer.drain()
            if len(allowed) < len(data):
                self.cut()
                return


@asynccontextmanager
async def wire_to(host: str, port: int) -> AsyncIterator[Wire]:
    """Lay a wire; its `url` is the address for the reader."""
    wire = Wire(host, port)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        wire.cut()
        await server.wait_closed()
