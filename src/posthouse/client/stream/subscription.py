"""A subscription: an async iterator over stored events, then live ones, over as many connections as it takes.

No gap and no duplicate: each time it is opened anew it goes on from its place. A reader that is too slow costs a
bounded buffer; when that is full the relay is told to stop, and is asked again from the same place once there is room,
so one slow reader never holds up the others on the connection. Ephemeral events have no place: those that come while
the buffer is full are counted and gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from posthouse.client.options import ClientOptions
from posthouse.client.stream.buffer import Buffer
from posthouse.client.stream.commands import SentEvent, write_command
from posthouse.client.stream.place import Place
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.filters import Filter, filter_from_json


@dataclass(frozen=True, slots=True)
class Received:
    """One event of a subscription."""

    event: Event
    #: place in the relay's journal; None for an ephemeral event
    seq: int | None
    #: where to go on behind this event; None before the relay gave its first cursor
    cursor: str | None


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
        send: Callable[[bytes], None],
        forget: Callable[[Subscription], None],
    ) -> None:
        self._filters = list(filters)
        self._matchers: list[Filter] = [filter_from_json(each) for each in filters]
        self._place = Place(cursor, limit)
        self._buffer: Buffer[Received | _CaughtUp] = Buffer(options.buffer_events, options.buffer_bytes)
        self._send = send
        self._forget = forget
        self._number = number
        self._opened = 0
        self._is_open = False
        self._is_closed = False
        self._failure: PosthouseError | None = None
        self._live = asyncio.Event()
        #: where to go on behind the last event that was handed out; keep it to resume in another process
        self.cursor = cursor
        #: ephemeral events that came while the buffer was full
        self.missed = 0

    @property
    def wire_id(self) -> str:
        """The id on the wire; a new one for each opening, so that what is late is not mistaken."""
        return f"{self._number}.{self._opened}"

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
        """Yield what is stored and end where live events begin; iterating goes on from there."""
        while True:
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            if not isinstance(item, Received):
                return
            yield item

    async def wait_live(self) -> None:
        """Wait until everything stored has come; somebody has to read meanwhile if there may be much."""
        await self._live.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the subscription; what is in the buffer can still be read."""
        if not self._is_closed:
            self._is_closed = True
            self._stop()
            self._forget(self)
            self._wake_all()

    # what the stream calls

    def open(self) -> None:
        """Ask the relay, from the present place on, unless it is asked already or there is no room."""
        if self._is_closed or self._is_open or not self._buffer.has_room:
            return
        self._opened += 1
        self._is_open = True
        self._send(write_command("REQ", self.wire_id, self._place.options(), *self._filters))

    def reopen(self) -> None:
        """Ask the relay on a new connection."""
        self._is_open = False
        self.open()

    def take(self, sent: SentEvent) -> None:
        """Take one event from the relay."""
        if not self._is_open or not self._place.passes(sent.seq):
            return
        if not any(each.matches(sent.event) for each in self._matchers):
            self.fail(error("answer_invalid", relay="the relay", reason=f"event {sent.event.id} was not asked for"))
        elif self._buffer.has_room:
            cursor = None if sent.seq is None else self._place.advance(sent.seq)
            self._buffer.put(Received(sent.event, sent.seq, cursor), sent.size)
        elif sent.seq is None:
            self.missed += 1
        else:
            self._stop()

    def take_end_of_stored(self, cursor: str | None) -> None:
        """Note that everything stored up to the cursor has come."""
        if self._is_open:
            self._place.arrive(cursor)
            self._buffer.put(_CaughtUp(cursor))
            self._live.set()

    def take_closed(self, failure: PosthouseError | None, cursor: str | None) -> bool:
        """Note that the relay has closed it; tell whether to open it again, after a while."""
        if not self._is_open:  # closed from here before: what came since was dropped, and its cursor would skip it
            return False
        self._is_open = False
        if failure is not None and not isinstance(failure, Transient):
            self.fail(failure)
            return False
        self._place.arrive(cursor)
        return not self._is_closed

    def fail(self, failure: PosthouseError) -> None:
        """End the subscription with an error, which the reader gets behind what is in the buffer."""
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

    def _stop(self) -> None:
        if self._is_open:
            self._is_open = False
            self._send(write_command("CLOSE", self.wire_id))

    def _wake_all(self) -> None:
        self._live.set()
        self._buffer.wake()
