"""A proxy between a relay and PostgreSQL that cuts or holds the connection at the moment of COMMIT, or keeps silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from tests.postgresql.between import close_session, open_session, socket_between

_READ_BYTES = 65_536
#: what is lost: the command on its way to the server, or the server's answer to it
Lost = Literal["command", "answer"]


class CutProxy:
    """Passes everything on until `cut_next` says what to lose of the next COMMIT."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.cut_next: Lost | None = None
        self.cuts = 0
        #: cleared: nothing passes, as if the network were cut
        self.passes = asyncio.Event()
        self.passes.set()
        self._held: asyncio.Event | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def hold_commit(self) -> None:
        """Let nothing pass from the next COMMIT on, until `passes` is set; return once that COMMIT has come."""
        held = self._held = asyncio.Event()
        try:
            await held.wait()
        finally:
            self._held = None

    def cut(self) -> None:
        """End every connection now."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client with the server."""
        try:
            from_server, to_server = await open_session(self._server)
        except OSError:  # the server is down
            return
        self._writers |= {writer, to_server}
        ways = [
            asyncio.create_task(self._pass(reader, to_server, "command")),
            asyncio.create_task(self._pass(from_server, writer, "answer")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)  # a connection may end in the middle of a write
            await close_session(to_server)
            self._writers -= {writer, to_server}

    async def close(self) -> None:
        """Close what a test that ends has left open."""
        for writer in self._writers:
            await close_session(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Lost) -> None:
        while data := await reader.read(_READ_BYTES):
            if self.cut_next == kind and b"COMMIT\x00" in data:
                self.cut_next = None
                self.cuts += 1
                return
            if kind == "command" and self._held is not None and b"COMMIT\x00" in data:
                self.passes.clear()
                self._held.set()
            await self.passes.wait()
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cut_proxy(server: Path, folder: Path) -> AsyncIterator[CutProxy]:
    """Run a proxy whose socket is in `folder`."""
    proxy = CutProxy(server)
    try:
        async with socket_between(folder, proxy.serve):
            yield proxy
    finally:
        await proxy.close()
