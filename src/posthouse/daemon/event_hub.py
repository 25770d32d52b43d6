"""In-process events of a daemon, broadcast to event streams.

Each listener has a bounded queue. A listener that falls behind is closed; its stream ends, and the client resumes
from the inbox. Events are not stored: only message events can be repeated, because the inbox has the messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import Clock, format_utc

MESSAGE = "message"


class DaemonEvent(NamedTuple):
    """One event."""

    event: str
    data: Mapping[str, Any]
    #: inbox id of a message
    id: str | None = None
    #: position of a message in the inbox
    position: int = 0
    #: whose inbox a message is in
    agent: str = DEFAULT_INBOX

    def frame(self) -> bytes:
        """Return the event in the format of server-sent events."""
        head = b"" if self.id is None else b"id: %b\n" % self.id.encode()
        return head + b"event: %b\ndata: %b\n\n" % (self.event.encode(), msgspec.json.encode(self.data))


class Listener:
    """One subscriber with its bounded queue."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: deque[DaemonEvent] = deque()
        self._wakeup = asyncio.Event()
        #: True once the listener has fallen behind, or the daemon stops
        self.is_closed = False

    def push(self, event: DaemonEvent) -> None:
        """Queue an event; close the listener if its queue is full."""
        if len(self._queue) >= self._limit:
            self.close()
        elif not self.is_closed:
            self._queue.append(event)
            self._wakeup.set()

    def close(self) -> None:
        """Stop accepting events and wake the reader."""
        self.is_closed = True
        self._wakeup.set()

    async def next_batch(self, timeout_s: float) -> list[DaemonEvent]:
        """Wait for events and return them; return an empty list after the timeout or once the listener is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()
        except TimeoutError:
            return []
        self._wakeup.clear()
        batch = list(self._queue)
        self._queue.clear()
        return batch


class EventHub:
    """Broadcasts the events of one daemon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()
        #: callback(event name) for every event, for counting
        self.on_event: Callable[[str], None] = lambda _event: None

    def subscribe(self, limit: int) -> Listener:
        """Return a new listener with a queue of `limit` events; `unsubscribe` must follow."""
        listener = Listener(limit)
        self._listeners.add(listener)
        return listener

    def unsubscribe(self, listener: Listener) -> None:
        """Stop sending events to a listener."""
        self._listeners.discard(listener)

    def publish(self, event: str, /, **data: Any) -> None:
        """Send an event with the current time to every listener."""
        self._broadcast(DaemonEvent(event, {"ts": format_utc(self._clock.wall_ns()), **data}))

    def publish_message(
        self, item_id: str, position: int, message: Mapping[str, Any], at_ns: int, agent: str = DEFAULT_INBOX
    ) -> None:
        """Send the event of a new inbox message to every listener."""
        self._broadcast(message_event(item_id, position, message, at_ns, agent))

    def _broadcast(self, event: DaemonEvent) -> None:
        self.on_event(event.event)
        for listener in tuple(self._listeners):
            listener.push(event)

    def close(self) -> None:
        """Close every listener."""
        for listener in tuple(self._listeners):
            listener.close()


def message_event(
    item_id: str, position: int, message: Mapping[str, Any], at_ns: int, agent: str = DEFAULT_INBOX
) -> DaemonEvent:
    """Return the event of an inbox message; it is the same whether the message is new or repeated."""
    return DaemonEvent(MESSAGE, {"ts": format_utc(at_ns), **message}, item_id, position, agent)
