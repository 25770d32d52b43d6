"""The network between a host and its relay, when it is bad: cut for a while, or slow.

Bytes pass unchanged and in order, or the connection is gone; nothing is ever lost inside a connection that stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHUNK = 1 << 16


class Network:
    """A port that leads to the relay."""

    def __init__(self, port: int) -> None:
        #: of the relay
        self._to = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        #: True: every new connection ends at once
        self.is_cut = False
        #: what every piece of data takes, both ways
        self.delay_s = 0.0
        self.cuts = 0
        #: where clients connect
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End every connection and listen no more."""
        assert self._server is not None
        self._server.close()
        await self._end_all()

    async def cut(self, seconds: float) -> None:
        """Be gone for a while: every connection ends, new ones get nowhere."""
        self.is_cut = True
        self.cuts += 1
        await self._end_all()
        await asyncio.sleep(seconds)
        self.is_cut = False

    async def slow(self, delay_s: float, seconds: float) -> None:
        """Be slow for a while."""
        self.delay_s = delay_s
        await asyncio.sleep(seconds)
        self.delay_s = 0.0

    async def _end_all(self) -> None:
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.is_cut:
                await self._lead(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # what the ends see of it is a connection that is gone
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._to)
        ways = [
            asyncio.create_task(self._pass(reader, behind_writer)),
            asyncio.create_task(self._pass(behind_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            behind_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def network_to(port: int) -> AsyncIterator[Network]:
    """A network that leads to a port of this machine."""
    network = Network(port)
    await network.open()
    try:
        yield network
    finally:
        with contextlib.suppress(OSError):
            await network.close()
