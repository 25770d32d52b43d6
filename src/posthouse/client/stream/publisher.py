"""Publish events over the stream: with retries (`Publisher`), or as one list without (`BatchSubmitter`).

The publisher keeps every event, as the bytes that were signed, until the relay has answered for it. After a
reconnect it sends everything unanswered again, in order; a relay that has an event already says so, and that is a
success. A transient refusal is retried after the delay the relay asks for, and nothing overtakes it. Unanswered
events are bounded; beyond the bound a publish waits.

A submitted list travels in one frame, so the relay refuses what follows a refused event of the same destination. A
connection that ends before the answers leaves open whether the events were accepted: the caller's outbox decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.client.failures import Backoff, error_from, retry_after_s
from posthouse.client.stream.frames import value_of, write_event
from posthouse.client.transport import ClientOptions
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.limits import EVENTS_PER_REQUEST

_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 5.0
#: transient, but it lasts as long as somebody else likes: everything behind it would wait too
_RAISED_AT_ONCE = frozenset({"queue_full"})


class Published(msgspec.Struct, frozen=True):
    """The relay's answer for an event it has."""

    event: Event
    #: place in the relay's journal; None for an ephemeral event
    seq: int | None
    #: the relay had it already
    duplicate: bool
    #: everything the relay answered
    answer: dict[str, Any]


class _Pending:
    __slots__ = ("command", "event", "fault", "future", "is_sent", "waiters")

    def __init__(self, event: Event, future: asyncio.Future[Published]) -> None:
        self.event = event
        self.command = write_event("EVENT", event)
        self.future = future
        self.is_sent = False
        #: the last transient refusal
        self.fault: PosthouseError | None = None
        #: callers that wait for the answer: the same event may be published twice at once
        self.waiters = 0


class Publisher:
    """Sends events and waits for their answers."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        origin: str,
        options: ClientOptions,
        why_down: Callable[[], PosthouseError | None] = lambda: None,
    ) -> None:
        self._send = send
        self._why_down = why_down
        self._origin = origin
        self._options = options
        self._pending: dict[str, _Pending] = {}
        self._bytes = 0
        self._turn = asyncio.Lock()
        self._has_room = asyncio.Event()
        self._failure: PosthouseError | None = None
        self._backoff = Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)
        #: set while refused events wait for their retry: nothing may overtake them
        self._retry: asyncio.TimerHandle | None = None

    @property
    def unanswered(self) -> int:
        """How many events wait for their answer."""
        return len(self._pending)

    async def publish(self, event: Event) -> Published:
        """Send an event and return the relay's answer, or raise its refusal."""
        answer = (await self.publish_many([event]))[0]
        if isinstance(answer, PosthouseError):
            raise answer
        return answer

    async def publish_many(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events in order and return an answer or a refusal for each, in the same order."""
        pending: list[_Pending | PosthouseError] = []
        try:
            for event in events:
                pending.append(await self._submit(event))
            return [await self._result(each) for each in pending]
        finally:
            for each in pending:
                if isinstance(each, _Pending):
                    self._leave(each)

    def take_ok(self, arguments: Sequence[msgspec.Raw]) -> None:
        """Handle ["OK", id, accepted, result or problem]."""
        event_id, accepted, body = (value_of(argument) for argument in arguments)
        pending = self._pending.get(event_id)
        if pending is None:
            return
        if accepted is not True:
            self._refused(pending, error_from(body, self._origin))
            return
        self._backoff.reset()
        seq, duplicate = body.get("seq"), body.get("duplicate") is True
        self._settle(pending, Published(pending.event, seq, duplicate, body))

    def resume(self) -> None:
        """Send everything unanswered again, in order."""
        self._stop_waiting()
        for pending in self._pending.values():
            pending.is_sent = True
            self._send(pending.command)

    def fail(self, failure: PosthouseError) -> None:
        """End every publish that is open."""
        self._failure = failure
        self._stop_waiting()
        for pending in list(self._pending.values()):
            self._settle(pending, failure)
        self._has_room.set()

    async def _submit(self, event: Event) -> _Pending | PosthouseError:
        try:
            async with asyncio.timeout(self._options.publish_timeout_s), self._turn:
                await self._wait_for_room()
        except TimeoutError:
            return self._unanswered(event, None)
        if self._failure is not None:
            return self._failure
        pending = self._pending.get(event.id)
        if pending is None:
            pending = self._keep(event)
        pending.waiters += 1
        return pending

    def _keep(self, event: Event) -> _Pending:
        pending = _Pending(event, asyncio.get_running_loop().create_future())
        self._pending[event.id] = pending
        self._bytes += len(pending.command)
        if self._retry is None:
            pending.is_sent = True
            self._send(pending.command)
        return pending

    async def _result(self, pending: _Pending | PosthouseError) -> Published | PosthouseError:
        if isinstance(pending, PosthouseError):
            return pending
        try:
            async with asyncio.timeout(self._options.publish_timeout_s):
                return await asyncio.shield(pending.future)
        except TimeoutError:
            return self._unanswered(pending.event, pending)
        except PosthouseError as refusal:
            return refusal

    async def _wait_for_room(self) -> None:
        while self._failure is None and self._pending and self._is_full():
            self._has_room.clear()
            await self._has_room.wait()

    def _is_full(self) -> bool:
        return len(self._pending) >= self._options.in_flight_events or self._bytes >= self._options.in_flight_bytes

    def _refused(self, pending: _Pending, failure: PosthouseError) -> None:
        if not isinstance(failure, Transient) or failure.code in _RAISED_AT_ONCE:
            self._settle(pending, failure)
            return
        pending.fault = failure
        pending.is_sent = False
        if self._retry is not None:
            return
        # only our own list made it wait for an earlier event, which is settled now
        is_own_doing = failure.code == "earlier_refused"
        delay_s = 0.0 if is_own_doing else max(retry_after_s(failure), self._backoff.next_s())
        self._retry = asyncio.get_running_loop().call_later(delay_s, self._send_unsent)

    def _send_unsent(self) -> None:
        self._retry = None
        for pending in self._pending.values():
            if not pending.is_sent:
                pending.is_sent = True
                self._send(pending.command)

    def _stop_waiting(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _settle(self, pending: _Pending, result: Published | PosthouseError) -> None:
        if not pending.future.done():
            if isinstance(result, Published):
                pending.future.set_result(result)
            else:
                pending.future.set_exception(result)
                pending.future.exception()  # seen: whoever waited may be gone
        self._drop(pending)

    def _leave(self, pending: _Pending) -> None:
        pending.waiters -= 1
        if not pending.waiters:
            self._drop(pending)

    def _drop(self, pending: _Pending) -> None:
        if self._pending.get(pending.event.id) is pending:
            del self._pending[pending.event.id]
            self._bytes -= len(pending.command)
            self._has_room.set()

    def _unanswered(self, event: Event, pending: _Pending | None) -> PosthouseError:
        if pending is not None and pending.fault is not None:
            return pending.fault
        if (fault := self._why_down()) is not None:
            return fault
        return error("answer_missing", seconds=self._options.publish_timeout_s, id=event.id)


Answer = Published | PosthouseError


class BatchSubmitter:
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
