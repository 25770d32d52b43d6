"""Publish events over the stream: with retries (`publish`, `publish_many`), or as one list without (`submit`).

Every event is sent as the bytes that were signed, again after each reconnect and each transient refusal, until the
relay answers or the caller's time is over; a relay that has the event already answers with a success. The events in
flight are bounded; beyond the bound a publish waits for room, in the order of the calls.

A submitted list travels in one frame, so the relay refuses what follows a refused event of the same destination. If
the connection ends before the answers, whether the relay accepted the events is unknown: the caller's outbox decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from posthouse.client.stream.frames import write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.client.transport import ClientOptions
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.limits import EVENTS_PER_REQUEST


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
    """One event on its way, and the future of its caller."""

    __slots__ = ("_publisher", "event", "future", "has_room")

    def __init__(self, event: Event, kind: Kind, publisher: Publisher) -> None:
        super().__init__(kind, event.id, write_command("EVENT", event))
        self._publisher = publisher
        self.event = event
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        #: whether it takes part of the publisher's room
        self.has_room = False

    def on_answer(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)
        if self.has_room:
            self._publisher.give_room(self)


class Publisher:
    """Sends events and waits for their answers."""

    def __init__(self, commands: PendingCommands, options: ClientOptions) -> None:
        self._commands = commands
        self._timeout_s = options.publish_timeout_s
        self._max_events = options.in_flight_events
        self._max_bytes = options.in_flight_bytes
        #: held by the caller that waits for room, so that later callers do not overtake it
        self._order = asyncio.Lock()
        #: callers that wait for room or for that lock, which is free for a moment between two of them
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._bytes = 0
        #: events that wait for their answer
        self.unanswered = 0

    async def publish(self, event: Event) -> Published:
        """Send an event and return the relay's answer, or raise its refusal."""
        if (flight := await self._send(event)) is None:
            raise self._no_room(event)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await flight.future
        except TimeoutError as late:
            raise self._commands.timeout_error(flight, self._timeout_s) from late
        finally:
            self._forget(flight)
        published = _published(event, answer)
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
                self._no_room(event) if flight is None else await self._answer(flight)
                for event, flight in zip(events, flights, strict=True)
            ]
        finally:
            for flight in flights:
                if flight is not None:
                    self._forget(flight)

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events in one frame, without retries, and return an answer or a refusal for each, in order."""
        if not 1 <= len(events) <= EVENTS_PER_REQUEST:
            raise error("value_invalid", name="events", reason=f"1 to {EVENTS_PER_REQUEST} travel in one list")
        flights = [_InFlight(event, Kind.BATCH, self) for event in events]
        try:
            self._commands.add_batch(flights)
            await asyncio.wait([flight.future for flight in flights], timeout=self._timeout_s)
        finally:
            for flight in flights:
                self._commands.discard(flight)
        return [self._submitted(flight) for flight in flights]

    def give_room(self, flight: _InFlight) -> None:
        """Give the room of an event to the next one."""
        flight.has_room = False
        self.unanswered -= 1
        self._bytes -= len(flight.command)
        self._has_room.set()

    async def _send(self, event: Event) -> _InFlight | None:
        """Send an event as soon as there is room; None if there is none in time."""
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
        flight.has_room = True
        self.unanswered += 1
        self._bytes += len(flight.command)
        self._commands.add(flight)
        return flight

    async def _answer(self, flight: _InFlight) -> Published | PosthouseError:
        try:
            async with asyncio.timeout(self._timeout_s):
                return _published(flight.event, await flight.future)
        except TimeoutError:
            return self._commands.timeout_error(flight, self._timeout_s)

    def _submitted(self, flight: _InFlight) -> Published | PosthouseError:
        if flight.future.done():
            return _published(flight.event, flight.future.result())
        return error("answer_missing", seconds=self._timeout_s, id=flight.event.id)

    def _is_full(self) -> bool:
        return self.unanswered > 0 and (self.unanswered >= self._max_events or self._bytes >= self._max_bytes)

    def _forget(self, flight: _InFlight) -> None:
        """Drop an event whose caller has given up; after an answer there is nothing to drop."""
        if flight.has_room:
            self._commands.discard(flight)
            self.give_room(flight)

    def _no_room(self, event: Event) -> PosthouseError:
        return self._commands.link.last_error or error("answer_missing", seconds=self._timeout_s, id=event.id)


def _published(event: Event, answer: Answer) -> Published | PosthouseError:
    if isinstance(answer, PosthouseError):
        return answer
    seq = answer.get("seq")
    return Published(event, seq if isinstance(seq, int) else None, answer.get("duplicate") is True, answer)
