"""One WebSocket of the Pinch wire, whoever is at its other end: sending, pings that prove, and the end.

Nothing is known here of addresses or envelopes. A ping is answered after everything before it was read, which is what
proves the reading of what nobody confirms.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from posthouse.model.clock import Clock
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.wire.frames import binary_frame, close_frame, ping_frame
from posthouse.relay.wire.websocket import HELD_BACK_BYTES, WriteBuffer

POLICY = 1008
NO_PONG = "no pong"


class Line:
    """A socket that can be written to, pinged and ended."""

    def __init__(self, outbox: WriteBuffer, clock: Clock, settings: PinchSettings) -> None:
        self.outbox = outbox
        self.clock = clock
        self.settings = settings
        #: why the relay ends it: a close code and a reason
        self.ending: tuple[int, str] | None = None
        #: set when everything of this connection has been released
        self.ended = asyncio.Event()
        self._pongs: dict[bytes, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        #: boot times of the last regular ping, and of the one that waits for its answer
        self._last_ping_ns = clock.boot_ns()
        self._pinged_ns: int | None = None
        self._sent_at_ping = 0

    @property
    def is_held_back(self) -> bool:
        """Whether the relay does not read now: then a pong may wait unread."""
        return False

    def send(self, envelope: bytes) -> None:
        """Send one envelope."""
        if self.ending is None:
            self.outbox.write(binary_frame(envelope))

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a ping; `on_pong` is called once the peer has read everything before it."""
        payload = b"%d" % next(self._numbers)
        self._pongs[payload] = on_pong
        self.outbox.write(ping_frame(payload))

    def take_pong(self, payload: bytes) -> None:
        """Tell who waits for the answer to a ping that it came."""
        on_pong = self._pongs.pop(bytes(payload), None)
        if on_pong is not None:
            on_pong()

    async def is_alive(self) -> bool:
        """Ping at once and tell whether the peer answers in time."""
        if self.ending is not None or self.ended.is_set():
            return False
        answered = asyncio.Event()
        self.ping(answered.set)
        waits = [asyncio.ensure_future(answered.wait()), asyncio.ensure_future(self.ended.wait())]
        await asyncio.wait(waits, timeout=self.settings.pong_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return answered.is_set() and not self.ended.is_set()

    def end(self, code: int, reason: str) -> None:
        """Close with a code and a reason; the peer has a moment to read them, then it is dropped."""
        if self.ending is None:
            self.ending = (code, reason)
            self.outbox.write(close_frame(code, reason))
            self.outbox.abort_soon()

    def look(self, now_ns: int) -> None:
        """Send the regular ping when it is due; end a peer that did not answer the last one."""
        if self._pinged_ns is None:
            if now_ns - self._last_ping_ns >= self.settings.ping_s * 1e9:
                self._last_ping_ns = self._pinged_ns = now_ns
                self._sent_at_ping = self.outbox.sent_bytes
                self.ping(self._answered)
        elif now_ns - self._pinged_ns >= self.settings.pong_s * 1e9:
            sent = self.outbox.sent_bytes
            if self.is_held_back or (sent > self._sent_at_ping and self.outbox.unsent_bytes):
                self._pinged_ns, self._sent_at_ping = now_ns, sent  # it reads slowly, or is not listened to
            else:
                self.end(POLICY, NO_PONG)

    async def wait_for_room(self) -> None:
        """Wait until few answers are unsent: only then is the next frame read."""
        if self.outbox.unsent_bytes > HELD_BACK_BYTES:
            await self.outbox.drain()

    def _answered(self) -> None:
        self._pinged_ns = None
