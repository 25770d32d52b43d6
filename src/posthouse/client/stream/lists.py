"""Lists of events sent as they are: one frame, one answer each, nothing retried.

For whoever keeps its own outbox and decides itself what is sent again, and when. A list travels whole, so the relay
refuses what stands behind a refused event of the same destination. A connection that ends before the answers have come
leaves it open whether the events were taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from posthouse.client.problems import error_from
from posthouse.client.stream.commands import value_of, write_event
from posthouse.client.stream.publisher import Published
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.limits import EVENTS_PER_REQUEST

Answer = Published | PosthouseError


class Lists:
    """Lists that are on their way."""

    def __init__(
        self,
        send_list: Callable[[Sequence[bytes]], None],
        is_up: Callable[[], bool],
        origin: str,
        timeout_s: float,
    ) -> None:
        self._send_list = send_list
        self._is_up = is_up
        self._origin = origin
        self._timeout_s = timeout_s
        #: event id -> event and those who wait for its answer
        self._waiting: dict[str, list[tuple[Event, asyncio.Future[Answer]]]] = {}

    async def submit(self, events: Sequence[Event]) -> list[Answer]:
        """Send events in one frame and return an answer or a refusal for each, in order."""
        if not 1 <= len(events) <= EVENTS_PER_REQUEST:
            raise error("value_invalid", name="events", reason=f"1 to {EVENTS_PER_REQUEST} travel in one list")
        if not self._is_up():
            lost = error("relay_unreachable", relay=self._origin, reason="there is no connection")
            return [lost] * len(events)
        futures = [self._expect(event) for event in events]
        self._send_list([write_event("EVENT", event) for event in events])
        try:
            await asyncio.wait(futures, timeout=self._timeout_s)
        finally:
            for event, future in zip(events, futures, strict=True):
                self._forget(event, future)
        return [self._result(event, future) for event, future in zip(events, futures, strict=True)]

    def take_ok(self, arguments: Sequence[msgspec.Raw]) -> None:
        """Handle ["OK", id, accepted, result or problem]."""
        event_id = value_of(arguments[0])
        waiting = self._waiting.pop(event_id, None) if isinstance(event_id, str) else None
        if waiting is None:
            return
        is_accepted, body = value_of(arguments[1]) is True, value_of(arguments[2])
        for event, future in waiting:
            if not future.done():
                future.set_result(self._answer(event, is_accepted, body))

    def take_lost(self, code: int | None, reason: str) -> None:
        """Tell everybody who waits that no answer will come."""
        self._fail(error("relay_unreachable", relay=self._origin, reason="the connection was lost"))

    def resume(self) -> None:
        """Nothing is sent again here."""

    def fail(self, failure: PosthouseError) -> None:
        """End every list that is open."""
        self._fail(failure)

    def _fail(self, failure: PosthouseError) -> None:
        waiting, self._waiting = self._waiting, {}
        for same in waiting.values():
            for _event, future in same:
                if not future.done():
                    future.set_result(failure)

    def _expect(self, event: Event) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(event.id, []).append((event, future))
        return future

    def _forget(self, event: Event, future: asyncio.Future[Answer]) -> None:
        waiting = self._waiting.get(event.id)
        if waiting is not None and not future.done():
            waiting[:] = [each for each in waiting if each[1] is not future]
            if not waiting:
                del self._waiting[event.id]

    def _answer(self, event: Event, is_accepted: bool, body: dict[str, object]) -> Answer:
        if not is_accepted:
            return error_from(body, self._origin)
        seq = body.get("seq")
        return Published(event, seq if isinstance(seq, int) else None, body.get("duplicate") is True, body)

    def _result(self, event: Event, future: asyncio.Future[Answer]) -> Answer:
        if future.done():
            return future.result()
        return error("answer_missing", seconds=self._timeout_s, id=event.id)
