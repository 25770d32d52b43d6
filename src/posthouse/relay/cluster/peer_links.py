"""Connections from this relay to the others of its store: one WebSocket to each, reopened while the relay is alive.

Frames to one relay keep their order. A request gets its answers through a callback, which gets None once if the
connection is lost first: the outcome is then unknown. Frames without a request are sent at most once. The relay's key
proves who connects: the token is a keyed hash that only relays with this key can make.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import aiohttp
import msgspec
import structlog

from posthouse.model.limits import MIB
from posthouse.relay.wire.frames import command_text

log = structlog.get_logger(__name__)
PEER_PATH = "/v1/peers"
FRAME_BYTES = 64 * MIB  # relays trust each other; a list of events is far smaller
MAX_UNSENT = 10_000  # frames; a relay that does not read loses its connection
_RETRY_S = 0.2
_CONNECT_S = 2.0
_decode = msgspec.json.Decoder(list[Any]).decode
#: Called with the arguments that follow the number in an answer; with None if the connection was lost.
OnReply = Callable[[list[Any] | None], None]


class PeerLink:
    """The connection to one relay."""

    def __init__(
        self, url: str, token: Callable[[], str], greeting: Callable[[], tuple[Any, ...]], on_change: Callable[[], None]
    ) -> None:
        self._url = url + PEER_PATH
        self._token = token
        self._greeting = greeting
        self._on_change = on_change
        self._unsent: asyncio.Queue[bytes] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._replies: dict[int, OnReply] = {}
        self._task = asyncio.create_task(self._serve(), name=f"link to {url}")

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent now."""
        return self._unsent is not None

    def send(self, *parts: Any) -> None:
        """Send a frame, or drop it if there is no connection."""
        if self._unsent is not None:
            try:
                self._unsent.put_nowait(command_text(*parts))
            except asyncio.QueueFull:
                log.warning("peer_does_not_read", peer=self._url)
                if self._writing is not None:
                    self._writing.cancel()

    def ask(self, on_reply: OnReply, verb: str, *arguments: Any) -> int:
        """Send a request; `on_reply` gets each of its answers. Return its number."""
        number = next(self._numbers)
        if self._unsent is None:
            on_reply(None)
            return number
        self._replies[number] = on_reply
        self.send(verb, number, *arguments)
        return number

    def forget(self, number: int) -> None:
        """Ignore further answers to a request."""
        self._replies.pop(number, None)

    async def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._lose()

    async def _serve(self) -> None:
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_S)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context() if self._url.startswith("https:") else True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await self._connect(session)
                self._lose()
                await asyncio.sleep(_RETRY_S)

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        # the guard of a relay checks the names that clients use; a peer is identified by its token
        headers = {"Authorization": f"Bearer {self._token()}", "Host": "localhost"}
        async with session.ws_connect(self._url, headers=headers, max_msg_size=FRAME_BYTES, compress=0) as socket:
            self._unsent = unsent = asyncio.Queue[bytes](MAX_UNSENT)
            self.send(*self._greeting())
            self._writing = asyncio.create_task(self._write(socket, unsent))
            tasks = (asyncio.create_task(self._read(socket)), self._writing)
            self._on_change()
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            self._take_reply(_decode(message.data))

    async def _write(self, socket: aiohttp.ClientWebSocketResponse, unsent: asyncio.Queue[bytes]) -> None:
        while True:
            await socket.send_str((await unsent.get()).decode())

    def _take_reply(self, frame: list[Any]) -> None:
        """Pass an answer to its request; each is the last one, except LOCKED: a watch gets many of them."""
        verb, number, *rest = frame
        on_reply = self._replies.get(number)
        if on_reply is None:
            return
        if verb != "LOCKED":
            del self._replies[number]
        on_reply(rest)

    def _lose(self) -> None:
        was_open, self._unsent = self._unsent is not None, None
        replies, self._replies = self._replies, {}
        for on_reply in replies.values():
            on_reply(None)
        if was_open:
            self._on_change()


class PeerLinks:
    """The connections to all relays that are alive."""

    def __init__(self, token: Callable[[], str], greeting: Callable[[], tuple[Any, ...]]) -> None:
        self._token = token
        self._greeting = greeting
        self._links: dict[str, PeerLink] = {}
        #: called when a connection opens or is lost
        self.on_change: Callable[[], None] = lambda: None

    def find(self, relay_id: str) -> PeerLink | None:
        """Return the connection to a relay, if it is open."""
        link = self._links.get(relay_id)
        return link if link is not None and link.is_open else None

    def open_links(self) -> list[PeerLink]:
        """Return the connections that are open."""
        return [link for link in self._links.values() if link.is_open]

    def broadcast(self, *parts: Any) -> None:
        """Send a frame to all."""
        for link in self._links.values():
            link.send(*parts)

    async def keep(self, peers: Mapping[str, str]) -> None:
        """Open and close connections so that exactly these relays are connected, given by id with their URLs."""
        for relay_id in [each for each in self._links if each not in peers]:
            await self._links.pop(relay_id).close()
        for relay_id, url in peers.items():
            if relay_id not in self._links:
                self._links[relay_id] = PeerLink(url, self._token, self._greeting, lambda: self.on_change())

    async def close(self) -> None:
        """End all connections."""
        await self.keep({})
