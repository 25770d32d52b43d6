"""A pooler in transaction mode, as PgBouncer has one: between two transactions a client has no session of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_PORT_NAME = ".s.PGSQL.5432"
_READ_BYTES = 65_536
_IDLE = b"I"
_TERMINATE = b"X"
Session = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler:
    """Gives each transaction the session that was used last; one request of a client is one read of its socket."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._idle: list[Session] = []
        self._opened: list[Session] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        startup = await reader.read(_READ_BYTES)
        first = await self._open(startup, writer)
        if not self._idle:
            self._idle.append(first)
        session: Session | None = None
        with suppress(asyncio.CancelledError, ConnectionError):
            while (data := await reader.read(_READ_BYTES)) and not data.startswith(_TERMINATE):
                session = session or (self._idle.pop() if self._idle else await self._open(startup, None))
                session[1].write(data)
                if await _pass_answer(session[0], writer) == _IDLE:
                    self._idle.append(session)
                    session = None
        writer.close()

    def close(self) -> None:
        """End all sessions."""
        for _reader, writer in self._opened:
            writer.close()

    async def _open(self, startup: bytes, client: asyncio.StreamWriter | None) -> Session:
        session = await asyncio.open_unix_connection(str(self._server / _PORT_NAME))
        self._opened.append(session)
        session[1].write(startup)
        await _pass_answer(session[0], client)
        return session


async def _pass_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> bytes:
    """Pass messages on up to ReadyForQuery, and return the state of the transaction that it names."""
    while True:
        head = await reader.readexactly(5)
        body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
        if writer is not None:
            writer.write(head + body)
        if head[:1] == b"Z":
            return body


@asynccontextmanager
async def transaction_pooler(server: Path, folder: Path) -> AsyncIterator[None]:
    """Run a pooler whose socket is in `folder`."""
    pooler = TransactionPooler(server)
    listening = await asyncio.start_unix_server(pooler.serve, str(folder / _PORT_NAME))
    try:
        yield
    finally:
        listening.close()
        pooler.close()
