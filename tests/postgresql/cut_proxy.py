"""A proxy between a relay and PostgreSQL that cuts the connection at the moment of COMMIT."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

_PORT_NAME = ".s.PGSQL.5432"
_READ_BYTES = 65_536
#: what is lost: the command on its way to the server, or the server's answer to it
Lost = Literal["command", "answer"]


class CutProxy:
    """Passes everything on until `cut_next` says what to lose of the next COMMIT."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.cut_next: Lost | None = None
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client with the server."""
        from_server, to_server = await asyncio.open_unix_connection(str(self._server / _PORT_NAME))
        ways = [
            asyncio.create_task(self._pass(reader, to_server, "command")),
            asyncio.create_task(self._pass(from_server, writer, "answer")),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the test has ended
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            to_server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Lost) -> None:
        while data := await reader.read(_READ_BYTES):
            if self.cut_next == kind and b"COMMIT\x00" in data:
                self.cut_next = None
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cut_proxy(server: Path, folder: Path) -> AsyncIterator[CutProxy]:
    """Run a proxy whose socket is in `folder`."""
    proxy = CutProxy(server)
    listening = await asyncio.start_unix_server(proxy.serve, str(folder / _PORT_NAME))
    try:
        yield proxy
    finally:
        listening.close()
