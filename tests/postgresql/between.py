"""A socket in front of PostgreSQL's own, for the programs of the tests that stand between a relay and its database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_SOCKET_NAME = ".s.PGSQL.5432"
_ACCEPTED_S = 0.02  # asyncio does not close a connection that it accepts while the server closes
Session = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_session(server: Path) -> Session:
    """Connect with the server whose socket is in `server`."""
    return await asyncio.open_unix_connection(str(server / _SOCKET_NAME))


async def close_session(writer: asyncio.StreamWriter) -> None:
    """Close one side of a connection and wait until its socket is closed."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def socket_between(
    folder: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    """Listen in `folder` and serve each client; at the end no connection of a client is left open."""
    serving: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # the test has ended
            await serve(reader, writer)
        await close_session(writer)
        writers.discard(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        task = asyncio.create_task(serve_client(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    listening = await asyncio.start_unix_server(accept, str(folder / _SOCKET_NAME))
    try:
        yield
    finally:
        await asyncio.sleep(_ACCEPTED_S)
        listening.close()
        left = list(serving)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for writer in list(writers):  # of tasks that were cancelled before their first step, or at their end
            await close_session(writer)
