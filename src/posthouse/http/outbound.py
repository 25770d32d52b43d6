"""Unsent bytes of all connections of a server, with one bound on their total; the slowest reader is dropped first.

A transport keeps the bytes that the kernel does not accept, so without a bound, peers that do not read would decide how
much memory the server needs. Each connection has an Outlet that counts its unsent bytes and the bytes held until they
can be written. Between two checks counts only grow, because a transport does not report what it has sent. So the total
is never too low, and all connections are measured again only when it exceeds the bound. The slowest reader is the one
whose oldest unsent byte has waited longest, so a peer that takes a byte now and then is no faster than one that takes
none. A TLS transport does not count bytes that it has already encrypted, so the transport below it is asked too. A
large response is held here and written in small parts.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import cast

import structlog
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from aiohttp.web_response import Response

log = structlog.get_logger(__name__)
LARGE_BYTES = 256 * 1024  # a response above this is written in parts of this size, as its client reads
_MARK_S = 0.05  # writes this close together count as one: bounds the marks of a reader that is far behind


class Outlet:
    """The bytes that one connection has written and its peer has not taken."""

    __slots__ = (
        "_account",
        "_below",
        "_held",
        "_held_since_s",
        "_marks",
        "_transport",
        "counted",
        "is_watched",
        "written",
    )

    def __init__(self, account: OutboundAccount, transport: asyncio.Transport) -> None:
        self._account = account
        self._transport = transport
        #: the transport that a TLS transport writes to
        self._below = _transport_below(transport)
        #: whether the transport does not report everything that is unsent
        self.is_watched = self._below is not None
        #: bytes written so far
        self.written = 0
        self._held = 0
        self._held_since_s = float("inf")
        #: (bytes written so far, when), oldest first, for writes that may be unsent. A list, because an empty deque
        #: takes 0.7 KB of each idle connection.
        self._marks: list[tuple[int, float]] = []
        #: the account's figure for this connection: at least the unsent and held bytes
        self.counted = 0

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken; grows while the peer reads."""
        return self.written - self._transport.get_write_buffer_size()

    def wrote(self, size: int) -> None:
        """Count bytes that were just written."""
        self.written += size
        self.note_unsent()

    def note_unsent(self) -> None:
        """Count the unsent bytes after a write; needed only if some are unsent or counted, or it `is_watched`."""
        in_memory = self._transport.get_write_buffer_size() + self._encrypted_bytes()
        if self._marks:
            self._drop_marks(in_memory)
        if in_memory:
            self._mark()
        if in_memory or self.counted:
            self._account.count(self, in_memory + self._held)

    def count_response(self, response: Response) -> None:
        """Count a response that the library writes in this iteration of the event loop; hold a large one."""
        body = response.body
        if isinstance(body, bytes) and len(body) > LARGE_BYTES:
            response.body = _HeldBody(body, self)
        else:
            asyncio.get_running_loop().call_soon(self._wrote_by_library, response.content_length or 0)

    def hold(self, size: int) -> None:
        """Count bytes that wait in memory for this connection; a negative size when they were written or dropped."""
        if not self._held:
            self._held_since_s = self._account.now_s()
        self._held += size
        if not self._held:
            self._held_since_s = float("inf")
        # a connection that ends no longer counts, and the total must not fall below zero
        self._account.count(self, 0 if self._transport.is_closing() else self.counted + size)

    def measure(self) -> int:
        """Return the bytes that are unsent or held now."""
        if self._transport.is_closing():
            return 0
        unsent = self._transport.get_write_buffer_size() + self._encrypted_bytes()
        self._drop_marks(unsent)
        return unsent + self._held

    @property
    def waits_since_s(self) -> float:
        """Since when the oldest byte waits; infinite if there is none."""
        return min(self._marks[0][1], self._held_since_s) if self._marks else self._held_since_s

    def drop(self) -> None:
        """Drop the connection and everything unsent: a peer that does not read would not read a close frame either."""
        log.warning(
            "reader_dropped",
            reason="the unsent bytes of all connections exceed their limit, and this reader is the slowest",
            bytes=self.counted,
            peer=str(self._transport.get_extra_info("peername")),
        )
        self._transport.abort()

    def _encrypted_bytes(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def _wrote_by_library(self, size: int) -> None:
        if not self._transport.is_closing():
            self.wrote(size)

    def _drop_marks(self, unsent: int) -> None:
        """Drop the marks of bytes that were sent."""
        sent = self.written - unsent
        count = 0
        while count < len(self._marks) and (not unsent or self._marks[count][0] <= sent):
            count += 1
        del self._marks[:count]

    def _mark(self) -> None:
        now_s = self._account.now_s()
        if len(self._marks) > 1 and now_s - self._marks[-1][1] < _MARK_S:
            self._marks[-1] = (self.written, self._marks[-1][1])
        else:
            self._marks.append((self.written, now_s))


def _transport_below(transport: asyncio.Transport) -> asyncio.Transport | None:
    """Return the transport that a TLS transport writes to; None for a transport without TLS.

    No interface leads to it. In asyncio it has a name; uvloop keeps it in a C struct, which only the garbage collector
    can follow.
    """
    if transport.get_extra_info("ssl_object") is None:
        return None
    protocol = getattr(transport, "_ssl_protocol", None)
    below = _hidden_below(transport) if protocol is None else getattr(protocol, "_transport", None)
    return cast(asyncio.Transport | None, below)


def _hidden_below(transport: asyncio.Transport) -> object | None:
    protocols = [each for each in gc.get_referents(transport) if type(each).__name__ == "SSLProtocol"]
    transports = [each for each in gc.get_referents(*protocols) if hasattr(each, "get_write_buffer_size")]
    return next((each for each in transports if each is not transport), None)


class _HeldBody(Payload):
    """The body of a large response: counted as held, and written in parts as the client takes them."""

    def __init__(self, body: bytes, outlet: Outlet) -> None:
        super().__init__(body)
        self._size = len(body)
        self._outlet = outlet

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        body = memoryview(self._value)  # its parts are no copies
        self._outlet.hold(len(body))
        try:
            for start in range(0, len(body), LARGE_BYTES):
                if start:
                    await asyncio.sleep(0)  # let the loop serve others
                await writer.write(body[start : start + LARGE_BYTES])
        finally:
            self._outlet.hold(-len(body))


class OutboundAccount:
    """The unsent bytes of all connections of a server."""

    def __init__(self, max_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.now_s = now_s
        #: readers that were dropped to make room
        self.dropped = 0
        self._total = 0
        self._outlets: dict[asyncio.BaseTransport, Outlet] = {}

    def open(self, transport: asyncio.Transport) -> Outlet:
        """Return the outlet of a connection; `close` must follow when the connection has ended."""
        outlet = self._outlets.get(transport)
        if outlet is None:
            outlet = self._outlets[transport] = Outlet(self, transport)
        return outlet

    def close(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection that has ended."""
        outlet = self._outlets.pop(transport, None)
        if outlet is not None:
            self._total -= outlet.counted
            outlet.counted = 0

    def count(self, outlet: Outlet, size: int) -> None:
        """Set the figure of a connection; drop the slowest readers if the total exceeds the bound."""
        self._total += size - outlet.counted
        outlet.counted = size
        if self._total > self.max_bytes:
            self._make_room()

    def measure(self) -> int:
        """Return the bytes that are unsent or held now, over all connections."""
        for outlet in self._outlets.values():
            outlet.counted = outlet.measure()
        self._total = sum([outlet.counted for outlet in self._outlets.values()])
        return self._total

    def _make_room(self) -> None:
        target = self.max_bytes - self.max_bytes // 8  # so that the next check is a while away
        if self.measure() <= target:
            return
        waiting = [outlet for outlet in self._outlets.values() if outlet.counted]
        waiting.sort(key=lambda outlet: (outlet.waits_since_s, -outlet.counted))
        for outlet in waiting:
            if self._total <= target:
                break
            self.dropped += 1
            outlet.drop()
            self._total -= outlet.counted
            outlet.counted = 0
