"""A pooler in transaction mode, as PgBouncer has one: between two transactions a client has no session of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.postgresql.between import Session, close_session, open_session, socket_between

_READ_BYTES = 65_536
_IDLE = b"I"
_TERMINATE = b"X"


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
        with suppress(ConnectionError):
            while (data := await reader.read(_READ_BYTES)) and not data.startswith(_TERMINATE):
                session = session or (self._idle.pop() if self._idle else await self._open(startup, None))
                session[1].write(data)
                if await _pass_answer(session[0], writer) == _IDLE:
                    self._idle.append(session)
                    session = None

    async def close(self) -> None:
        """End all sessions."""
        for _reader, writer in self._opened:
            await close_session(writer)

    async def _open(self, startup: bytes, client: asyncio.StreamWriter | None) -> Session:
        session = await open_session(self._server)
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
    try:
        async with socket_between(folder, pooler.serve):
            yield
    finally:
        await pooler.close()
