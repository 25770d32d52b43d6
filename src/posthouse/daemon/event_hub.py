"""In-process events of a daemon, broadcast to event streams and waiting requests.

Each listener has a bounded queue. A listener that falls behind is ended and resumes from the inbox. Events are not
stored: only message events can be repeated, because the inbox has them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from posthouse.model.clock import Clock, format_utc

MESSAGE = "message"


class DaemonEvent(NamedTuple):
    """One event; `id` is the inbox id of a message."""

    event: str
    data: Mapping[str, Any]
    id: str | None = None
    #: place of a message in the inbox
    position: int = 0

    def frame(self) -> bytes:
        """Return it as a server-sent event."""
        head = b"" if self.id is None else b"id: %b\n" % self.id.encode()
        return head + b"event: %b\ndata: %b\n\n" % (self.event.encode(), msgspec.json.encode(self.data))


class Listener:
    """One who listens, with a bounded queue."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[DaemonEvent] = deque()
        self._news = asyncio.Event()
        #: it did not keep up, or the daemon stops
        self.is_over = False

    def put(self, happening: DaemonEvent) -> None:
        if len(self._waiting) >= self._limit:
            self.end()
        elif not self.is_over:
            self._waiting.append(happening)
            self._news.set()

    def end(self) -> None:
        self.is_over = True
        self._news.set()

    async def take(self, timeout_s: float) -> list[DaemonEvent]:
        """Wait for events and return them; nothing when the time is over or it has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class EventHub:
    """The events of one daemon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()
        #: told everything, for counting
        self.on_event: Callable[[str], None] = lambda _event: None

    def listen(self, limit: int) -> Listener:
        """Return somebody new who listens; `leave` ends it."""
        listener = Listener(limit)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        self._listeners.discard(listener)

    def tell(self, event: str, /, **data: Any) -> None:
        """Tell everybody; the time is added."""
        self._hand_out(DaemonEvent(event, {"ts": format_utc(self._clock.wall_ns()), **data}))

    def tell_message(self, item_id: str, position: int, shown: Mapping[str, Any], at_ns: int) -> None:
        """Tell everybody of a new message in the inbox."""
        self._hand_out(message_event(item_id, position, shown, at_ns))

    def _hand_out(self, happening: DaemonEvent) -> None:
        self.on_event(happening.event)
        for listener in tuple(self._listeners):
            listener.put(happening)

    def close(self) -> None:
        """End every listener."""
        for listener in tuple(self._listeners):
            listener.end()


def message_event(item_id: str, position: int, shown: Mapping[str, Any], at_ns: int) -> DaemonEvent:
    """Return the event of a message in the inbox; it is the same whenever it is told."""
    return DaemonEvent(MESSAGE, {"ts": format_utc(at_ns), **shown}, item_id, position)
