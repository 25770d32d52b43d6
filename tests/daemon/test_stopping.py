"""A daemon that stops lets go of its clients: none may stay with it while its successor answers."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.house import House
from tests.daemon.hosts import Host, host_at

ASK = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def connect(host: Host) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(host.daemon.directory.socket))


@pytest.mark.parametrize("when", ["before", "while"])
async def test_connection_to_a_daemon_that_stops_is_closed_whenever_it_came(house: House, when: str) -> None:
    async with host_at(house, "alice") as host:
        if when == "before":
            reader, writer = await connect(host)
            host.daemon.is_stopping = True
            writer.write(ASK)
        else:
            host.daemon.is_stopping = True
            reader, writer = await connect(host)
        async with asyncio.timeout(30):
            said = await reader.read()  # to its end: the daemon closes
        assert (b"daemon_stopping" in said) is (when == "before")
        writer.close()
