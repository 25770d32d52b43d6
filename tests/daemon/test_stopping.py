"""A daemon that stops lets go of its clients: none may stay with it while its successor answers."""

from __future__ import annotations

import asyncio

from tests.client.house import House
from tests.daemon.hosts import Host, host_at

ASK = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def connect(host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(host.daemon.directory.socket))


async def to_the_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.read()


async def test_kept_connection_gets_daemon_stopping_and_is_closed(house: House) -> None:
    async with host_at(house, "alice") as host:
        reader, writer = await connect(host)
        writer.write(ASK)
        async with asyncio.timeout(30):
            await reader.readuntil(b"\r\n\r\n")
        host.daemon.context.is_stopping = True
        writer.write(ASK)
        assert b"daemon_stopping" in await to_the_end(reader)
        writer.close()


async def test_connection_that_comes_while_the_daemon_stops_is_closed(house: House) -> None:
    async with host_at(house, "alice") as host:
        host.daemon.context.is_stopping = True
        reader, writer = await connect(host)
        assert await to_the_end(reader) == b""
        writer.close()
