"""The write buffer of one WebSocket: frames go straight to the transport, so connections can share one bytes object.

The buffer asks the transport how many bytes are unsent, so a slow reader is measured, not guessed. It knows which
events among them the peer has not taken, and how long the peer's kernel takes to acknowledge.
"""

from __future__ import annotations

import asyncio
import socket as sockets
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from posthouse.http.outbound import Outlet

CLOSE_S = 2.0  # for the closing handshake; a peer that does not answer it by then is dropped
# Linux's struct tcp_info: the end, and the place of tcpi_rtt and tcpi_min_rtt, in microseconds
_TCP_INFO_BYTES, _TCP_INFO_RTT = 152, (68, 148)


class RoundTrip(NamedTuple):
    """How long the kernel of the peer takes to acknowledge."""

    smoothed_s: float
    shortest_s: float


class WriteBuffer:
    """Writes frames to one transport and knows how much of them the peer has not taken."""

    def __init__(
        self,
        transport: asyncio.Transport,
        drain: Callable[[], Awaitable[None]],
        outlet: Outlet,
        *,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self._transport = transport
        self._drain = drain
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._outlet = outlet
        #: (bytes sent once the frame is, events in it), oldest first, for frames that may be unsent
        self._ledger: deque[tuple[int, int]] = deque()
        self._unsent_events = 0
        #: whether the kernel did not take all of the last write
        self.was_behind = False
        #: frames and their events that wait for `uncork`; None: frames are written at once
        self._corked: list[tuple[bytes, int]] | None = None
        # Without a water mark every write is tried at once, so unsent bytes are those that the kernel did not take.
        # The high mark is 1, not 0: a TLS transport pauses at the high mark itself and would never resume from 0.
        transport.set_write_buffer_limits(1, 0)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken; grows while the peer reads."""
        return self._outlet.sent_bytes

    @property
    def unsent_events(self) -> int:
        self._drop_sent()
        return self._unsent_events

    def tcp_round_trip(self) -> RoundTrip | None:
        """Return the round trip that TCP has measured, or None where the kernel does not tell."""
        socket, option = self._transport.get_extra_info("socket"), getattr(sockets, "TCP_INFO", None)
        if socket is None or option is None:
            return None
        try:
            info = socket.getsockopt(sockets.IPPROTO_TCP, option, _TCP_INFO_BYTES)
        except OSError:  # not TCP, or gone
            return None
        if len(info) < _TCP_INFO_BYTES:
            return None
        smoothed_us, shortest_us = (int.from_bytes(info[at : at + 4], sys.byteorder) for at in _TCP_INFO_RTT)
        return RoundTrip(smoothed_us / 1e6, shortest_us / 1e6)

    def write(self, frame: bytes, events: int = 0) -> None:
        """Write an encoded frame that carries this number of events."""
        if self._transport.is_closing():
            return
        if self._corked is not None:
            self._corked.append((frame, events))
            return
        outlet = self._outlet
        self._transport.write(frame)
        outlet.written += len(frame)
        self.was_behind = self._transport.get_write_buffer_size() > 0
        if self.was_behind or outlet.counted or outlet.is_watched:
            outlet.note_unsent()
        if not self.was_behind:
            self._ledger.clear()
            self._unsent_events = 0
        elif events:
            self._ledger.append((outlet.written, events))
            self._unsent_events += events

    def cork(self) -> None:
        """Collect frames until `uncork`, so that the peer reads them together."""
        if self._corked is None:
            self._corked = []

    def uncork(self) -> None:
        """Write the collected frames at once."""
        corked, self._corked = self._corked, None
        if corked:
            self.write(b"".join([frame for frame, _events in corked]), sum([events for _frame, events in corked]))

    def hold(self, size: int) -> None:
        """Count bytes that wait in memory for this peer; a negative size once they were written or dropped."""
        self._outlet.hold(size)

    def has_room(self, size: int, events: int) -> bool:
        """Return True if this many more events fit into the bound; an empty buffer takes any frame."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0:
            return True
        self._drop_sent()
        return self._unsent_events + events <= self._max_events and unsent + size <= self._max_bytes

    async def drain(self) -> None:
        """Wait until the kernel has taken everything, or the peer is gone."""
        await self._drain()

    def abort(self) -> None:
        """Drop the connection and everything unsent."""
        self._transport.abort()

    def abort_soon(self) -> None:
        """Drop the connection after CLOSE_S: an orderly close would wait forever for a peer that does not read."""
        asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _drop_sent(self) -> None:
        sent, ledger = self._outlet.sent_bytes, self._ledger
        while ledger and ledger[0][0] <= sent:
            self._unsent_events -= ledger.popleft()[1]
