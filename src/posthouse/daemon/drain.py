"""Drain the outbox to the relay: one task per destination, each with at most one frame in flight.

Rows of a destination are sent in order, up to 64 per frame. After a refusal the destination waits for its back-off;
other destinations are not delayed. The number of attempts is not limited, but their age is: the drain gives up a row
that is too old instead of sending it again, because the relay may have forgotten its id. While local programs send many
messages, a backlog is throttled to about one frame in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from posthouse.client import Published
from posthouse.client.failures import retry_after_s
from posthouse.client.messages.sender import TOPIC_MARK
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import Claimed, Deferred, GivenUp, SendOutcome, Sent
from posthouse.daemon.outbox.transitions import MAX_AGE, MAX_AGE_TEXT
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Refused, Transient, error
from posthouse.model.event import Event, decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.model.outbox_rules import DEFAULT_MAX_AGE_H
from posthouse.tracing import TRACEPARENT, Role, Tracer

log = structlog.get_logger(__name__)
FRAME_ROWS = 64
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
BACKOFF_JITTER = 0.25  # of the wait, in either direction
_THROTTLE_MIN_ACCEPTS = 16  # during one frame; fewer sends do not notice the backlog
_THROTTLE_MAX_S = 0.5  # a slow relay must not keep a backlog waiting
_HOUR_NS = 3_600 * SECOND_NS
_STORE_AGAIN_S = 2.0
#: HTTP statuses of refusals that time or a new connection can lift
_TEMPORARY_STATUSES = frozenset({401, 408, 425, 429})
#: codes that are not about the message: this side closed, the relay's answer could not be read, a clock is wrong
_UNRELATED_CODES = frozenset({"client_closed", "answer_invalid", "answer_missing", "event_created_at_ahead"})
#: an administrator may let the node in again; after a rotation the successor signs the message
_OTHERWISE_SENT = frozenset({"not_member", "key_rotated", "key_not_approved"})
Submit = Callable[[Sequence[Event]], Awaitable[list[Published | PosthouseError]]]


def throttle_s(*, is_full: bool, accepted: int, took_s: float, destinations: int) -> float:
    """Return how long to pause after a frame, by how long it took and how many sends were accepted meanwhile."""
    is_throttled = is_full and accepted >= _THROTTLE_MIN_ACCEPTS
    return min(destinations * took_s, _THROTTLE_MAX_S) if is_throttled else 0.0


def is_permanent(failure: PosthouseError, *, is_admitted: bool) -> bool:
    """Return True if sending the same event again can never succeed.

    A missing right counts only if the relay has admitted this node: while a connection authenticates, the relay may
    refuse for a moment.
    """
    status = failure.spec.status
    if failure.code in _OTHERWISE_SENT:
        return False
    if not isinstance(failure, Refused) or failure.code in _UNRELATED_CODES or status in _TEMPORARY_STATUSES:
        return False
    if status == 403:
        return is_admitted
    return 400 <= status < 500


def backoff_s(failures: int, failure: PosthouseError, chance: random.Random) -> float:
    """Return how long to wait after `failures` frames in a row without progress, the last one included."""
    base = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30))
    return max(
        base * chance.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER), min(retry_after_s(failure), BACKOFF_MAX_S)
    )


class SendGate(Protocol):
    """Says when the relay accepts messages of this node."""

    @property
    def is_admitted(self) -> bool:
        """True if the relay has admitted this node."""
        ...

    async def wait_sending(self) -> None:
        """Wait until messages can be sent."""
        ...

    @property
    def may_send(self) -> bool:
        """True if messages can be sent now."""
        ...

    @property
    def trusts_clock(self) -> bool:
        """True if this machine's clock may decide what is too old."""
        ...


class Lane(SendGate, Protocol):
    """A delivery path to a destination that does not go over the relay."""

    async def submit(self, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Send events as one list; return the answer to each, in order."""
        ...


class Drain:
    """Sends the rows of one outbox."""

    def __init__(self, outbox: Outbox, submit: Submit, gate: SendGate, clock: Clock) -> None:
        self._outbox = outbox
        self._submit = submit
        self._gate = gate
        self._clock = clock
        #: destinations that do not go over the relay
        self.lanes: dict[str, Lane] = {}
        self._chance = random.SystemRandom()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: destinations that got rows since their task last claimed
        self._woken: set[str] = set()
        self.max_age_h = DEFAULT_MAX_AGE_H
        #: None: messages are not traced
        self.tracer: Tracer | None = None
        #: callback(row id, client_message_id, code) for each row that becomes dead
        self.on_dead: Callable[[str, str, str], None] = lambda _id, _client_id, _code: None
        #: callback(task) when a task ends, also by a defect, which leaves its destination without a sender
        self.on_task_end: Callable[[asyncio.Task[None]], None] = lambda _task: None
        #: callback() after the relay has accepted posts to a topic
        self.on_posted: Callable[[], None] = lambda: None
        #: callback(count) for rows that the relay has accepted
        self.on_sent: Callable[[int], None] = lambda _count: None

    @property
    def trusts_clock(self) -> bool:
        """True if this machine's clock may decide what is too old."""
        return self._gate.trusts_clock

    async def start(self) -> None:
        """Begin with the rows that are in the outbox."""
        for destination in await self._outbox.open_destinations():
            self.wake(destination)

    def wake(self, destination: str) -> None:
        """Send the pending rows of a destination."""
        self._woken.add(destination)
        if destination not in self._tasks:
            task = self._tasks[destination] = asyncio.create_task(self._run(destination))
            task.add_done_callback(self.on_task_end)

    async def close(self) -> None:
        """Stop sending; rows in flight are pending again when the daemon starts."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def expire(self) -> None:
        """Give up every pending row that is too old, unless the clock may be wrong."""
        if not self._gate.trusts_clock:
            return
        while expired := await self._outbox.expire(self._oldest_ns()):
            for row_id, client_message_id in expired:
                self.on_dead(row_id, client_message_id, MAX_AGE)

    async def _run(self, destination: str) -> None:
        failures = 0
        #: None: not claimed yet
        rows: list[Claimed] | None = None
        loop = asyncio.get_running_loop()
        lane = self.lanes.get(destination)
        while True:
            if rows is None or (not rows and destination in self._woken):
                await (lane or self._gate).wait_sending()
                self._woken.discard(destination)
                rows = await self._claim(destination)
            if rows:
                began_s, accepted, is_full = loop.time(), self._outbox.accepted, len(rows) == FRAME_ROWS
                failures, rows = await self._send_frame(destination, lane, rows, failures)
                accepted, took_s = self._outbox.accepted - accepted, loop.time() - began_s
                pause_s = throttle_s(is_full=is_full, accepted=accepted, took_s=took_s, destinations=len(self._tasks))
                await asyncio.sleep(pause_s)
            elif destination not in self._woken:
                del self._tasks[destination]
                return

    async def _claim(self, destination: str) -> list[Claimed]:
        while True:
            try:
                return await self._outbox.claim(destination, FRAME_ROWS)
            except Transient as failure:
                await self._wait_store(failure)

    async def _send_frame(
        self, destination: str, lane: Lane | None, rows: Sequence[Claimed], failures: int
    ) -> tuple[int, list[Claimed] | None]:
        """Send rows and settle them; return the number of frames in a row without progress, and the next rows.

        None instead of rows: there was a refusal, or no connection, so none were claimed.
        """
        submit, gate = (self._submit, self._gate) if lane is None else (lane.submit, lane)
        fresh, outcomes = self._split_expired(rows)
        answers = await self._submit_traced(submit, [decode_event(row.event) for row in fresh]) if fresh else []
        refusal = next((each for each in answers if isinstance(each, PosthouseError)), None)
        final = [_final_outcome(row, answer, gate) for row, answer in zip(fresh, answers, strict=True)]
        has_progress = any(each is not None for each in final)
        failures = 0 if refusal is None else 1 if has_progress else failures + 1
        delay_s = 0.0 if refusal is None else backoff_s(failures, refusal, self._chance)
        next_ns = self._clock.wall_ns() + round(delay_s * SECOND_NS)
        for row, answer, outcome in zip(fresh, answers, final, strict=True):
            outcomes.append(outcome or _deferred(row, answer, next_ns))
        claims_next = refusal is None and gate.may_send
        following = await self._settle(outcomes, destination, FRAME_ROWS if claims_next else 0)
        self._notify(outcomes)
        if destination.startswith(TOPIC_MARK):
            self.on_posted()
        if delay_s and gate.may_send:  # without a connection, the next one ends the wait
            await asyncio.sleep(delay_s)
        return failures, following if claims_next else None

    async def _submit_traced(self, submit: Submit, events: Sequence[Event]) -> list[Published | PosthouseError]:
        """Submit events, and record how long each traced one took."""
        if self.tracer is None:
            return await submit(events)
        started_ns = self.tracer.now_ns()
        answers = await submit(events)
        for event, answer in zip(events, answers, strict=True):
            failure = answer if isinstance(answer, PosthouseError) else None
            attributes = {"posthouse.mesh": event.mesh, "messaging.message.id": event.id}
            self.tracer.record("publish", Role.CLIENT, event.value(TRACEPARENT), started_ns, attributes, failure)
        return answers

    def _split_expired(self, rows: Sequence[Claimed]) -> tuple[list[Claimed], list[SendOutcome]]:
        """Return the rows that may be sent, and the outcomes of those that are too old."""
        if not self._gate.trusts_clock:
            return list(rows), []
        oldest_ns = self._oldest_ns()
        fresh = [row for row in rows if row.enqueued_at_ns >= oldest_ns]
        return fresh, [GivenUp(row, MAX_AGE, MAX_AGE_TEXT) for row in rows if row.enqueued_at_ns < oldest_ns]

    def _oldest_ns(self) -> int:
        return self._clock.wall_ns() - self.max_age_h * _HOUR_NS

    async def _settle(self, outcomes: Sequence[SendOutcome], destination: str, limit: int) -> list[Claimed]:
        """Write outcomes, retrying for as long as the store cannot be written: the relay may already have the messages.

        Returns the next rows, claimed in the same commit.
        """
        while True:
            try:
                return await self._outbox.settle(outcomes, destination, limit)
            except Transient as failure:
                await self._wait_store(failure)

    async def _wait_store(self, failure: PosthouseError) -> None:
        log.warning("outbox_not_writable", code=failure.code, reason=str(failure))
        await asyncio.sleep(_STORE_AGAIN_S)

    def _notify(self, outcomes: Sequence[SendOutcome]) -> None:
        sent = 0
        for outcome in outcomes:
            if isinstance(outcome, Sent):
                sent += 1
            elif isinstance(outcome, GivenUp):
                log.warning("outbox_dead", id=outcome.row.id, code=outcome.code)
                self.on_dead(outcome.row.id, outcome.row.client_message_id, outcome.code)
        self.on_sent(sent)


def _final_outcome(row: Claimed, answer: Published | PosthouseError, gate: SendGate) -> SendOutcome | None:
    """Return the outcome of a row that needs no other attempt, or None."""
    if isinstance(answer, Published):
        left_out = answer.answer.get("not_queued")
        message_id = str(answer.answer.get("id", answer.event.id))
        return Sent(row, message_id, answer.seq, left_out if isinstance(left_out, list) else ())
    if is_permanent(answer, is_admitted=gate.is_admitted):
        return GivenUp(row, answer.code, str(answer))
    return None


def _deferred(row: Claimed, answer: Published | PosthouseError, next_ns: int) -> Deferred:
    failure = answer if isinstance(answer, PosthouseError) else error("internal", reason="an answer without a verdict")
    return Deferred(row, failure.code, str(failure), next_ns)
