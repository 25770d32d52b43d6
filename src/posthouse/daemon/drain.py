"""Drain the outbox to the relay: one task per destination, each with at most one frame in flight.

Rows of a destination are sent in order, up to 64 per frame. After a refusal the destination waits for its back-off;
other destinations are not delayed. Attempts are not limited, age is: a row that is too old is given up before it is
sent again, because the relay may have forgotten its id. While local programs send in numbers, a backlog is throttled
to about one frame in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from posthouse.client import Published
from posthouse.client.failures import retry_after_s
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.transitions import MAX_AGE, Claimed, Deferred, GivenUp, SendOutcome, Sent
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Refused, Transient, error
from posthouse.model.event import Event, decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.model.outbox_rules import DEFAULT_MAX_AGE_H

_BUSY_ACCEPTS = 16  # during one frame; fewer do not notice the backlog
_THROTTLE_MAX_S = 0.5  # a slow relay is no reason to leave a backlog where it is


def throttle_s(*, is_full: bool, accepted: int, took_s: float, lanes: int) -> float:
    """Return how long to rest after a frame that took so long while so many sends were accepted."""
    return min(lanes * took_s, _THROTTLE_MAX_S) if is_full and accepted >= _BUSY_ACCEPTS else 0.0


BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
BACKOFF_JITTER = 0.25  # of the wait, either way
_NOT_YET = frozenset({401, 408, 425, 429})
#: says nothing about the message: this side ended, or what came could not be read
_NOT_ABOUT_IT = frozenset({"client_closed", "answer_invalid", "answer_missing"})


def is_permanent(failure: PosthouseError, *, is_admitted: bool) -> bool:
    """Tell whether sending the same event again can never help.

    A refusal of rights counts only from a relay that has let this node in: while it authenticates anew it may be
    refused for a moment.
    """
    status = failure.spec.status
    if not isinstance(failure, Refused) or failure.code in _NOT_ABOUT_IT or status in _NOT_YET:
        return False
    if status == 403:
        return is_admitted
    return 400 <= status < 500


def backoff_s(failures: int, failure: PosthouseError, chance: random.Random) -> float:
    """Return the wait after so many frames without any progress, this one included."""
    base = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30))
    return max(
        base * chance.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER), min(retry_after_s(failure), BACKOFF_MAX_S)
    )


log = structlog.get_logger(__name__)
FRAME_ROWS = 64
_HOUR_NS = 3_600 * SECOND_NS
_STORE_AGAIN_S = 2.0
Submit = Callable[[Sequence[Event]], Awaitable[list[Published | PosthouseError]]]


class Gate(Protocol):
    """Whether something can be sent now."""

    @property
    def is_admitted(self) -> bool:
        """Whether the relay has let this node in."""
        ...

    async def wait_sending(self) -> None:
        """Wait until something can be sent."""
        ...

    @property
    def may_send(self) -> bool:
        """Whether something can be sent now."""
        ...


class Drain:
    """All lanes of one outbox."""

    def __init__(self, outbox: Outbox, submit: Submit, gate: Gate, clock: Clock) -> None:
        self._outbox = outbox
        self._submit = submit
        self._gate = gate
        self._clock = clock
        self._chance = random.SystemRandom()
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._news: set[str] = set()
        self.max_age_h = DEFAULT_MAX_AGE_H
        #: told the id, the client_message_id and the reason of a row that is dead
        self.on_dead: Callable[[str, str, str], None] = lambda _id, _client_id, _reason: None
        #: told how many rows were sent
        self.on_sent: Callable[[int], None] = lambda _count: None

    async def start(self) -> None:
        """Begin with what is in the outbox."""
        for destination in await self._outbox.open_destinations():
            self.wake(destination)

    def wake(self, destination: str) -> None:
        """Look for rows of a destination."""
        self._news.add(destination)
        if destination not in self._lanes:
            self._lanes[destination] = asyncio.create_task(self._run(destination))

    async def close(self) -> None:
        """Stop sending; what is on its way is pending again when the daemon starts."""
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)

    async def expire(self) -> None:
        """Give up every pending row that is too old."""
        while expired := await self._outbox.expire(self._oldest_ns()):
            for row_id, client_message_id in expired:
                self.on_dead(row_id, client_message_id, MAX_AGE)

    @property
    def lanes(self) -> int:
        """How many destinations have something to send."""
        return len(self._lanes)

    async def _run(self, destination: str) -> None:
        failures = 0
        rows: list[Claimed] = []
        loop = asyncio.get_running_loop()
        while True:
            if not rows:
                await self._gate.wait_sending()
                self._news.discard(destination)
                rows = await self._claim(destination)
            if rows:
                began_s, accepted, is_full = loop.time(), self._outbox.accepted, len(rows) == FRAME_ROWS
                failures, rows = await self._frame(destination, rows, failures)
                accepted, took_s = self._outbox.accepted - accepted, loop.time() - began_s
                await asyncio.sleep(throttle_s(is_full=is_full, accepted=accepted, took_s=took_s, lanes=self.lanes))
            elif destination not in self._news:
                del self._lanes[destination]
                return

    async def _claim(self, destination: str) -> list[Claimed]:
        while True:
            try:
                return await self._outbox.claim(destination, FRAME_ROWS)
            except Transient as failure:
                await self._wait_store(failure)

    async def _settle(self, results: Sequence[SendOutcome], destination: str, limit: int) -> list[Claimed]:
        """Write what became of rows, however long the store cannot be written: the relay may have them.

        Returns the next rows, claimed in the same commit.
        """
        while True:
            try:
                return await self._outbox.settle(results, destination, limit)
            except Transient as failure:
                await self._wait_store(failure)

    async def _wait_store(self, failure: PosthouseError) -> None:
        log.warning("outbox_not_writable", code=failure.code, reason=str(failure))
        await asyncio.sleep(_STORE_AGAIN_S)

    async def _frame(self, destination: str, rows: Sequence[Claimed], failures: int) -> tuple[int, list[Claimed]]:
        """Send rows and write what became of them; return how many frames in a row got nowhere, and the next rows."""
        fresh, results = self._too_old(rows)
        answers = await self._submit([decode_event(row.event) for row in fresh]) if fresh else []
        refusal = next((each for each in answers if isinstance(each, PosthouseError)), None)
        settled = [self._settled(row, answer) for row, answer in zip(fresh, answers, strict=True)]
        has_progress = any(each is not None for each in settled)
        failures = 0 if refusal is None else 1 if has_progress else failures + 1
        delay_s = 0.0 if refusal is None else backoff_s(failures, refusal, self._chance)
        next_ns = self._clock.wall_ns() + round(delay_s * SECOND_NS)
        for row, answer, result in zip(fresh, answers, settled, strict=True):
            results.append(result or _deferred(row, answer, next_ns))
        following = await self._settle(results, destination, 0 if refusal or not self._gate.may_send else FRAME_ROWS)
        self._tell(results)
        if delay_s and self._gate.may_send:  # else the next connection is waited for
            await asyncio.sleep(delay_s)
        return failures, following

    def _settled(self, row: Claimed, answer: Published | PosthouseError) -> SendOutcome | None:
        if isinstance(answer, Published):
            return Sent(row, str(answer.answer.get("id", answer.event.id)), answer.seq)
        if is_permanent(answer, is_admitted=self._gate.is_admitted):
            return GivenUp(row, answer.code, str(answer))
        return None

    def _too_old(self, rows: Sequence[Claimed]) -> tuple[list[Claimed], list[SendOutcome]]:
        oldest_ns = self._oldest_ns()
        fresh = [row for row in rows if row.enqueued_at_ns >= oldest_ns]
        text = "it waited longer than a message may"
        return fresh, [GivenUp(row, MAX_AGE, text) for row in rows if row.enqueued_at_ns < oldest_ns]

    def _oldest_ns(self) -> int:
        return self._clock.wall_ns() - self.max_age_h * _HOUR_NS

    def _tell(self, results: Sequence[SendOutcome]) -> None:
        sent = 0
        for result in results:
            if isinstance(result, Sent):
                sent += 1
            elif isinstance(result, GivenUp):
                log.warning("outbox_dead", id=result.row.id, code=result.code)
                self.on_dead(result.row.id, result.row.client_message_id, result.code)
        self.on_sent(sent)


def _deferred(row: Claimed, answer: Published | PosthouseError, next_ns: int) -> Deferred:
    failure = answer if isinstance(answer, PosthouseError) else error("internal", reason="an answer without a verdict")
    return Deferred(row, failure.code, str(failure), next_ns)
