"""Draining the outbox: one lane per destination, each with at most one frame on its way.

Rows of a destination travel in order, up to 64 in a list; after a refusal the rest of the destination waits for its
back-off. Lanes know nothing of each other, so a destination that is stuck delays nobody. There is no cap on
attempts, only on age: a row that is too old is given up before it is sent again, because the relay may have
forgotten it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from posthouse.client import Published
from posthouse.daemon.outbox import Claimed, Outbox
from posthouse.daemon.outbox.progress import MAX_AGE, Deferred, GivenUp, Result, Sent
from posthouse.daemon.uplink.courtesy import rest_s
from posthouse.daemon.uplink.refusals import is_permanent, wait_s
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event, decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.model.outbox_age import DEFAULT_MAX_AGE_H

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

    async def bury_expired(self) -> None:
        """Give up what is too old, sent or not."""
        while buried := await self._outbox.bury_expired(self._oldest_ns()):
            for row_id, client_message_id in buried:
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
                await asyncio.sleep(rest_s(is_full=is_full, accepted=accepted, took_s=took_s, lanes=self.lanes))
            elif destination not in self._news:
                del self._lanes[destination]
                return

    async def _claim(self, destination: str) -> list[Claimed]:
        while True:
            try:
                return await self._outbox.claim(destination, FRAME_ROWS)
            except Transient as failure:
                await self._wait_store(failure)

    async def _settle(self, results: Sequence[Result], destination: str, limit: int) -> list[Claimed]:
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
        delay_s = 0.0 if refusal is None else wait_s(failures, refusal, self._chance)
        next_ns = self._clock.wall_ns() + round(delay_s * SECOND_NS)
        for row, answer, result in zip(fresh, answers, settled, strict=True):
            results.append(result or _deferred(row, answer, next_ns))
        following = await self._settle(results, destination, 0 if refusal or not self._gate.may_send else FRAME_ROWS)
        self._tell(results)
        if delay_s and self._gate.may_send:  # else the next connection is waited for
            await asyncio.sleep(delay_s)
        return failures, following

    def _settled(self, row: Claimed, answer: Published | PosthouseError) -> Result | None:
        if isinstance(answer, Published):
            return Sent(row, str(answer.answer.get("id", answer.event.id)), answer.seq)
        if is_permanent(answer, is_admitted=self._gate.is_admitted):
            return GivenUp(row, answer.code, str(answer))
        return None

    def _too_old(self, rows: Sequence[Claimed]) -> tuple[list[Claimed], list[Result]]:
        oldest_ns = self._oldest_ns()
        fresh = [row for row in rows if row.enqueued_at_ns >= oldest_ns]
        text = "it waited longer than a message may"
        return fresh, [GivenUp(row, MAX_AGE, text) for row in rows if row.enqueued_at_ns < oldest_ns]

    def _oldest_ns(self) -> int:
        return self._clock.wall_ns() - self.max_age_h * _HOUR_NS

    def _tell(self, results: Sequence[Result]) -> None:
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
