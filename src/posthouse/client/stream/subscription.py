"""Subscriptions: async iterators over stored events, then live ones, over as many connections as it takes.

There is no gap and no duplicate: the relay sends cursors with EOSE and CLOSED, events carry only their seq; a
subscription resumes from its last cursor and drops every seq it has seen. A slow reader costs a bounded buffer: when
it is full, the subscription is closed at the relay and opened again from the same point once there is room, so it
never delays other readers of the connection. Ephemeral events cannot be requested again: those that arrive while the
buffer is full are counted and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from posthouse.client.failures import Backoff, error_from
from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import Closed, EndOfStored, InvalidEvent, SubscribedEvent, write_command
from posthouse.client.transport import ClientOptions
from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.filters import Filter, filter_from_json

T = TypeVar("T")


class Buffer(Generic[T]):
    """A bounded queue of items for one reader."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """True if another item may be added; the last one may exceed the bound of bytes."""
        return len(self._items) < self._max_items and self._bytes < self._max_bytes

    @property
    def is_low(self) -> bool:
        """True if the reader has taken so much that requesting more is worth it."""
        return len(self._items) * 2 <= self._max_items and self._bytes * 2 <= self._max_bytes

    def put(self, item: T, size: int = 0) -> None:
        """Add an item; the caller checks `has_room` first."""
        self._items.append((item, size))
        self._bytes += size
        self._changed.set()

    def take(self) -> T | None:
        """Remove and return the oldest item, or None."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self._bytes -= size
        return item

    def wake(self) -> None:
        """Wake the reader without an item."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until an item is added or `wake` is called."""
        await self._changed.wait()
        self._changed.clear()


class ResumePoint:
    """The position from which a subscription continues after its last event."""

    def __init__(self, cursor: str | None, limit: int | None) -> None:
        self._cursor = cursor
        self._limit = limit
        self._epoch = _epoch_of(cursor)
        #: seq of the last event received; 0 before the first
        self.seq = 0

    def options(self) -> dict[str, Any]:
        """Return the options of the REQ that continues from here."""
        if self._cursor is not None:
            return {"cursor": self._cursor}
        # after the first event a limit would count from a newer end and leave a gap: request all, drop known ones
        return {} if self._limit is None or self.seq else {"limit": self._limit}

    def passes(self, seq: int | None) -> bool:
        """Return True if an event with this seq is new."""
        return seq is None or seq > self.seq

    def advance(self, seq: int) -> str | None:
        """Move past an event; return its cursor, or None before the relay has sent its first one."""
        self.seq = seq
        if self._epoch is not None:
            self._cursor = str(Cursor(self._epoch, seq))
        return self._cursor if self._epoch is not None else None

    def move_to(self, cursor: str | None) -> None:
        """Move to a cursor of the relay: it has sent everything up to it."""
        if cursor is not None:
            self._cursor = cursor
            self._epoch = _epoch_of(cursor)


def _epoch_of(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        return parse_cursor(cursor).epoch
    except PosthouseError:
        return None


@dataclass(frozen=True, slots=True)
class Received:
    """One event of a subscription."""

    event: Event
    #: position in the relay's journal; None for an ephemeral event
    seq: int | None
    #: to continue after this event; None before the relay has sent its first cursor
    cursor: str | None
    #: an admin revoked its key, and it was signed or accepted after the time from which the key is not trusted
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class _CaughtUp:
    cursor: str | None


class Subscription:
    """Events that match one of the filters, for one reader; made by Client.subscribe."""

    def __init__(
        self,
        number: int,
        filters: Sequence[dict[str, Any]],
        cursor: str | None,
        limit: int | None,
        options: ClientOptions,
        link: Link,
        forget: Callable[[Subscription], None],
    ) -> None:
        self._filters = list(filters)
        self._matchers: list[Filter] = [filter_from_json(each) for each in filters]
        self._resume_point = ResumePoint(cursor, limit)
        self._buffer: Buffer[Received | _CaughtUp] = Buffer(options.buffer_events, options.buffer_bytes)
        self._link = link
        self._forget = forget
        self.number = number
        self._opened = 0
        self._is_open = False
        self._is_closed = False
        self._failure: PosthouseError | None = None
        self._live = asyncio.Event()
        #: to continue after the last event that the reader has received; keep it to resume in another process
        self.cursor = cursor
        #: ephemeral events that arrived while the buffer was full
        self.missed = 0

    @property
    def wire_id(self) -> str:
        """The id on the wire, new for each opening, so that late events of an earlier one are recognized."""
        return f"{self.number}.{self._opened}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        while True:
            item = await self._next()
            if isinstance(item, Received):
                return item

    async def stored(self) -> AsyncIterator[Received]:
        """Yield the stored events and end where live events begin; iterate afterwards to continue."""
        while True:
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            if not isinstance(item, Received):
                return
            yield item

    async def wait_live(self) -> None:
        """Wait until every stored event has arrived; read meanwhile, in another task, if they may exceed the buffer."""
        await self._live.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the subscription; the reader can still read the buffer."""
        if not self._is_closed:
            self._is_closed = True
            self._pause()
            self._forget(self)
            self._wake_all()

    # called by Subscriptions

    def open(self) -> None:
        """Open it at the relay from the current position, unless it is open or the buffer is full."""
        if self._is_closed or self._is_open or not self._buffer.has_room:
            return
        self._opened += 1
        self._is_open = True
        self._link.send(write_command("REQ", self.wire_id, self._resume_point.options(), *self._filters))

    def reopen(self) -> None:
        """Open it on a new connection."""
        self._is_open = False
        self.open()

    def on_event(self, sent: SubscribedEvent) -> None:
        """Add an event for the reader, or pause if the buffer is full."""
        if not self._is_open or not self._resume_point.passes(sent.seq):
            return
        if not any(each.matches(sent.event) for each in self._matchers):
            self.fail(
                error("answer_invalid", relay=self._link.origin, reason=f"event {sent.event.id} was not requested")
            )
        elif self._buffer.has_room:
            cursor = None if sent.seq is None else self._resume_point.advance(sent.seq)
            self._buffer.put(Received(sent.event, sent.seq, cursor, sent.is_suspect), sent.size)
        elif sent.seq is None:
            self.missed += 1
        else:
            self._pause()

    def on_end_of_stored(self, cursor: str | None) -> None:
        """Note that every stored event up to the cursor has arrived."""
        if self._is_open:
            self._resume_point.move_to(cursor)
            self._buffer.put(_CaughtUp(cursor))
            self._live.set()

    def on_closed(self, failure: PosthouseError | None, cursor: str | None) -> bool:
        """Note that the relay has closed it; return True if it should be opened again after a delay."""
        if not self._is_open:  # paused before: later events were dropped, and this cursor would skip them
            return False
        self._is_open = False
        if failure is not None and not isinstance(failure, Transient):
            self.fail(failure)
            return False
        self._resume_point.move_to(cursor)
        return not self._is_closed

    def fail(self, failure: PosthouseError) -> None:
        """End the subscription with an error, which the reader gets after the buffer."""
        if not self._is_closed:
            self._failure = failure
            self.close()

    async def _next(self) -> Received | _CaughtUp:
        while (item := self._buffer.take()) is None:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise StopAsyncIteration
            await self._buffer.wait()
        if item.cursor is not None:
            self.cursor = item.cursor
        if not self._is_open and self._buffer.is_low:
            self.open()
        return item

    def _pause(self) -> None:
        if self._is_open:
            self._is_open = False
            self._link.send(write_command("CLOSE", self.wire_id))

    def _wake_all(self) -> None:
        self._live.set()
        self._buffer.wake()


class Subscriptions:
    """The open subscriptions of one link."""

    def __init__(self, link: Link, options: ClientOptions) -> None:
        self._link = link
        self._options = options
        self._open: dict[int, Subscription] = {}
        self._next_number = 1
        self._backoff = Backoff(0.05, 5.0)
        self._timers: set[asyncio.TimerHandle] = set()
        handlers: dict[type, Callable[[Any], None]] = {
            SubscribedEvent: self._on_event,
            InvalidEvent: self._on_invalid,
            EndOfStored: self._on_end_of_stored,
            Closed: self._on_closed,
        }
        link.join(handlers, on_up=self._reopen, on_end=self._fail)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, filters: Sequence[Mapping[str, Any]], cursor: str | None, limit: int | None) -> Subscription:
        """Make a subscription; it is opened at once if there is a connection."""
        number = self._next_number
        self._next_number += 1
        plain = [dict(each) for each in filters] or [{}]
        made = Subscription(number, plain, cursor, limit, self._options, self._link, self._forget)
        self._open[number] = made
        made.open()
        return made

    def _on_event(self, sent: SubscribedEvent) -> None:
        if (found := self._find(sent.sub)) is not None:
            found.on_event(sent)

    def _on_invalid(self, invalid: InvalidEvent) -> None:
        if (found := self._find(invalid.sub)) is not None:
            found.fail(invalid.error)

    def _on_end_of_stored(self, end: EndOfStored) -> None:
        self._backoff.reset()
        if (found := self._find(end.sub)) is not None:
            found.on_end_of_stored(end.cursor)

    def _on_closed(self, closed: Closed) -> None:
        found = self._find(closed.sub)
        if found is None:
            return
        refusal = None if closed.problem is None else error_from(closed.problem, self._link.origin)
        if found.on_closed(refusal, closed.cursor):
            self._open_later(found)

    def _reopen(self) -> None:
        for each in self._open.values():
            each.reopen()

    def _fail(self, failure: PosthouseError) -> None:
        """End everything: without an error if the client was closed."""
        for timer in self._timers:
            timer.cancel()
        for each in list(self._open.values()):
            if failure.code == "client_closed":
                each.close()
            else:
                each.fail(failure)

    def _find(self, wire_id: str) -> Subscription | None:
        number = wire_id.partition(".")[0]
        found = self._open.get(int(number)) if number.isdecimal() else None
        return found if found is not None and found.wire_id == wire_id else None

    def _forget(self, subscription: Subscription) -> None:
        self._open.pop(subscription.number, None)

    def _open_later(self, subscription: Subscription) -> None:
        def open_now() -> None:
            self._timers.discard(timer)
            subscription.open()

        timer = asyncio.get_running_loop().call_later(self._backoff.next_s(), open_now)
        self._timers.add(timer)
