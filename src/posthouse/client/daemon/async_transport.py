"""The transport of the async client of a daemon: aiohttp over a Unix socket or loopback TCP, on the running loop.

Connections are kept. A repeatable call is sent again if its kept connection was closed in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
from yarl import URL

from posthouse.client.daemon.calls import Call, refusal
from posthouse.client.daemon.event_stream import EventReader
from posthouse.client.daemon.local_api import DaemonEvent
from posthouse.client.daemon.locate import DaemonAddress, SocketAddress, request_headers, unreachable
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.errors import error
from posthouse.model.limits import MIB

T = TypeVar("T")
LINE_MAX_BYTES = MIB  # the largest message with its event fields
_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class AsyncTransport:
    """Executes calls over kept connections."""

    def __init__(self, address: DaemonAddress, timeout_s: float, agent: str = DEFAULT_INBOX) -> None:
        self._address = address
        self._agent = agent
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._socket_address: SocketAddress | None = None
        self._is_closed = False

    async def execute(self, call: Call[T]) -> T:
        """Return the answer of a call, or raise its refusal or daemon_unreachable."""
        data = call.encode()
        for is_last in (False, True):
            try:
                status, answered = await self._exchange(call, data)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError) as failure:
                if is_last or not call.is_repeatable:
                    raise unreachable(self._address, failure) from failure
            except _BROKEN as failure:
                raise unreachable(self._address, _cause(failure)) from failure
            else:
                return call.answer(status, answered, str(self._address))
        raise AssertionError("unreachable")

    async def _exchange(self, call: Call[T], data: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + call.wait_s)
        async with self._open().request(
            call.method,
            self._url(call.target),
            data=data,
            headers=self._headers(headers),
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            return response.status, await response.read()

    @asynccontextmanager
    async def stream(
        self, headers: Mapping[str, str], silence_s: float, query: str = ""
    ) -> AsyncIterator[AsyncIterator[DaemonEvent]]:
        """Open the stream of events; it fails after `silence_s` without even a comment from the daemon."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        try:
            async with self._open().get(
                self._url("/v1/events" + query),
                headers=self._headers(headers),
                timeout=timeout,
                read_bufsize=LINE_MAX_BYTES,
            ) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.read(), str(self._address))
                yield _events(response)
        except _BROKEN as failure:
            raise unreachable(self._address, _cause(failure)) from failure

    async def text(self, path: str) -> str:
        """Return an answer in plain text."""
        try:
            async with self._open().get(self._url(path), headers=self._headers({})) as response:
                data = await response.read()
        except _BROKEN as failure:
            raise unreachable(self._address, _cause(failure)) from failure
        if response.status != 200:
            raise refusal(response.status, data, str(self._address))
        return data.decode()

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
        if self._socket_address is not None:
            self._socket_address.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise error("client_closed", hint="Make a new DaemonClient.")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(), timeout=aiohttp.ClientTimeout(total=self._timeout_s)
            )
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        asyncio.get_running_loop()
        if self._address.is_tcp:
            return aiohttp.TCPConnector(limit=0)
        self._socket_address = SocketAddress(self._address)
        return aiohttp.UnixConnector(self._socket_address.path, limit=0)

    def _url(self, target: str) -> URL:
        port = f":{self._address.port()}" if self._address.is_tcp else ""
        host = "127.0.0.1" if self._address.is_tcp else "localhost"
        return URL(f"http://{host}{port}{target}", encoded=True)

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        return request_headers(self._address, self._agent, given)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[DaemonEvent]:
    reader = EventReader()
    while line := await response.content.readline():
        event = reader.take(line)
        if event is not None:
            yield event


def _cause(failure: BaseException) -> BaseException:
    return failure.os_error if isinstance(failure, aiohttp.ClientConnectorError) else failure
