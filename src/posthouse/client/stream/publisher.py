"""Publish events over the stream: with retries (`publish`, `publish_many`), or as one list without (`submit`).

Every event is sent as the bytes that were signed, again after each reconnect and each transient refusal, until the
relay answers or the caller's deadline has passed; a relay that has the event already answers with a success. The events
in flight are bounded; beyond the bound a publish waits for room, in the order of the calls.

A submitted list travels in one frame, so after a refused event the relay also refuses later ones with the same
destination. If the connection ends before the answers, whether the relay accepted the events is unknown: the caller's
outbox decides.

New events are signed here, at the end of the loop iteration: those of one iteration share a signature if the relay
knows batch signatures. No event waits for another one. One timer serves the deadlines of all events: every event has
the same timeout, so the oldest one is the next to be late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from posthouse.client.stream.frames import write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.client.transport import ClientOptions
from posthouse.client.trust.signing import Draft, sign_drafts
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.limits import BATCH_MAX_EVENTS, EVENTS_PER_REQUEST

#: feature of a relay: how many events may share a signature
BATCH_FEATURE = "batch_signatures"


class Published(msgspec.Struct, frozen=True):
    """The relay's answer for an event it has stored or passed on."""

    event: Event
    #: position in the relay's journal; None for an ephemeral event
    seq: int | None
    #: True if the relay had the event already
    duplicate: bool
    #: everything the relay answered
    answer: dict[str, Any]

    @property
    def current(self) -> bool | None:
        """Whether a replaceable or addressable event is the current one of its coordinate; None for other kinds."""
        current = self.answer.get("current")
        return current if isinstance(current, bool) else None


class _InFlight(Pending):
    """One event in flight, and the future of its caller."""

    __slots__ = ("_publisher", "event", "future", "size")

    def __init__(self, event: Event | Draft, kind: Kind, publisher: Publisher) -> None:
        """A draft has no command before it is signed."""
        super().__init__(kind, event.id, b"" if isinstance(event, Draft) else write_command("EVENT", event))
        self._publisher = publisher
        self.event = event
        #: the share of the publisher's room that it uses
        self.size = len(event.canonical) if isinstance(event, Draft) else len(self.command)
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def take_signed(self, event: Event) -> None:
        """Replace the draft by the event."""
        self.event = event
        self.command = write_command("EVENT", event)

    def on_answer(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)
        self._publisher.give_room(self)

    def published(self, answer: Answer) -> Published | PosthouseError:
        """Return the caller's result for an answer."""
        if isinstance(answer, PosthouseError):
            return answer
        assert isinstance(self.event, Event)
        seq = answer.get("seq")
        return Published(self.event, seq if isinstance(seq, int) else None, answer.get("duplicate") is True, answer)


class Publisher:
    """Sends events and waits for their answers."""

    def __init__(self, commands: PendingCommands, key: NodeKey, options: ClientOptions) -> None:
        self._commands = commands
        self._key = key
        self._timeout_s = options.publish_timeout_s
        self._max_events = options.in_flight_events
        self._max_bytes = options.in_flight_bytes
        #: held by the caller that waits for room, so that later callers do not overtake it
        self._order = asyncio.Lock()
        #: callers that wait for room or for that lock, which is free for a moment between two of them
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._bytes = 0
        #: events that wait for their answer, oldest first, with their deadlines in the loop's time
        self._deadlines: dict[_InFlight, float] = {}
        #: runs while an event waits, and then until the deadline of the last one it saw
        self._timer: asyncio.TimerHandle | None = None
        #: new events of this loop iteration
        self._unsigned: list[_InFlight] = []

    @property
    def unanswered(self) -> int:
        """How many events wait for their answer."""
        return len(self._deadlines)

    async def publish(self, event: Event | Draft) -> Published:
        """Send an event, signed first if it is new, and return the relay's answer, or raise its refusal."""
        if (flight := await self._send(event)) is None:
            raise self._no_room(event)
        try:
            published = flight.published(await flight.future)
        finally:
            self._forget(flight)
        if isinstance(published, PosthouseError):
            raise published
        return published

    async def publish_many(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events in order and return an answer or a refusal for each, in the same order."""
        flights: list[_InFlight | None] = []
        try:
            for event in events:
                flights.append(await self._send(event))
            return [
                self._no_room(event) if flight is None else flight.published(await flight.future)
                for event, flight in zip(events, flights, strict=True)
            ]
        finally:
            for flight in flights:
                if flight is not None:
                    self._forget(flight)

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events in one frame, without retries, and return an answer or a refusal for each, in order."""
        if not 1 <= len(events) <= EVENTS_PER_REQUEST:
            raise error("value_invalid", name="events", reason=f"1 to {EVENTS_PER_REQUEST} events fit into one list")
        self._sign()  # what was published before goes first
        flights = [_InFlight(event, Kind.BATCH, self) for event in events]
        try:
            self._commands.add_batch(flights)
            await asyncio.wait([flight.future for flight in flights], timeout=self._timeout_s)
        finally:
            for flight in flights:
                self._commands.discard(flight)
        return [self._submitted(flight) for flight in flights]

    def give_room(self, flight: _InFlight) -> None:
        """Give the room of an event to the next caller; does nothing if it has none."""
        if self._deadlines.pop(flight, None) is not None:
            self._bytes -= flight.size
            self._has_room.set()

    async def _send(self, event: Event | Draft) -> _InFlight | None:
        """Send an event as soon as there is room; return None if there is no room in time."""
        if self._waiting or self._is_full():
            self._waiting += 1
            try:
                async with asyncio.timeout(self._timeout_s), self._order:
                    while self._is_full():
                        self._has_room.clear()
                        await self._has_room.wait()
            except TimeoutError:
                return None
            finally:
                self._waiting -= 1
        flight = _InFlight(event, Kind.EVENT, self)
        self._set_deadline(flight)
        self._bytes += flight.size
        if isinstance(event, Draft):
            if not self._unsigned:
                self._commands.link.send_soon(self._sign)
            self._unsigned.append(flight)
        else:
            self._sign()  # what was published before goes first
            self._commands.add(flight)
        return flight

    def _sign(self) -> None:
        """Sign and send the new events of this loop iteration."""
        if not self._unsigned:
            return
        flights, self._unsigned = self._unsigned, []
        waiting = [flight for flight in flights if flight in self._deadlines]  # the callers of the others gave up
        drafts = [flight.event for flight in waiting if isinstance(flight.event, Draft)]
        batch_max = self._commands.link.feature(BATCH_FEATURE)
        events = sign_drafts(self._key, drafts, min(batch_max, BATCH_MAX_EVENTS) if type(batch_max) is int else 1)
        for flight, event in zip(waiting, events, strict=True):
            flight.take_signed(event)
            self._commands.add(flight)

    def _set_deadline(self, flight: _InFlight) -> None:
        loop = asyncio.get_running_loop()
        deadline = self._deadlines[flight] = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._end_late)

    def _end_late(self) -> None:
        """End the events whose deadline has passed with the reason, and run again at the next deadline."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for flight, _deadline in list(takewhile(lambda each: each[1] <= now, self._deadlines.items())):
            self._commands.discard(flight)
            flight.on_answer(self._commands.timeout_error(flight, self._timeout_s))
        next_deadline = next(iter(self._deadlines.values()), None)
        self._timer = None if next_deadline is None else loop.call_at(next_deadline, self._end_late)

    def _submitted(self, flight: _InFlight) -> Published | PosthouseError:
        if flight.future.done():
            return flight.published(flight.future.result())
        return error("answer_missing", seconds=self._timeout_s, id=flight.event.id)

    def _is_full(self) -> bool:
        count = len(self._deadlines)
        return count > 0 and (count >= self._max_events or self._bytes >= self._max_bytes)

    def _forget(self, flight: _InFlight) -> None:
        """Drop an event whose caller has given up; does nothing after an answer."""
        if flight in self._deadlines:
            self._commands.discard(flight)
            self.give_room(flight)

    def _no_room(self, event: Event | Draft) -> PosthouseError:
        return self._commands.link.last_error or error("answer_missing", seconds=self._timeout_s, id=event.id)
