"""Publishes that wait for rate, room and breaker instead of being refused: publish(wait_s=...).

A waiting publish is tried again until it is admitted or its time is up; only the last try is charged to the sender's
rate and recorded. Waiting publishes of one sender are admitted in the order of their calls, so the first one holds up
all later ones, whatever they wait for. Access and budget are never waited for, because time does not change them.
Inside a handler the wait ends shortly before the handler's deadline, and a publish to the mailbox that the handler
itself has to empty is refused at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from posthouse.bus.admission import Draft
from posthouse.bus.options import check_positive
from posthouse.bus.publishing import Publisher
from posthouse.bus.results import PublishResult, Reason, Rejection
from posthouse.bus.running import RUNNING, RunGate
from posthouse.model.errors import error
from posthouse.model.subjects import is_pattern

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25  # a raised limit, or room made by another process, is noticed this soon
_HANDLER_RESERVE = 0.05  # the share of a handler's remaining time that is left for it to report the refusal
_HANDLER_RESERVE_MAX_S = 1.0


def _check_wait(subject: str, wait_s: float) -> None:
    """Raise value_invalid unless a publish to the subject can wait that long."""
    check_positive("wait_s", wait_s)
    if is_pattern(subject):
        raise error("value_invalid", name="wait_s", reason=f"only a literal subject can be waited for, not {subject}")


class _SenderQueue:
    """The waiting publishes of one sender; `turn` is granted in the order of the calls."""

    __slots__ = ("length", "refused", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        #: publishes that hold the turn or wait for it
        self.length = 0
        #: why the first publish waits
        self.refused: Rejection | None = None


class WaitingPublishes:
    """All waiting publishes of one open Bus."""

    def __init__(self, publisher: Publisher, gate: RunGate) -> None:
        self._publisher = publisher
        self._gate = gate
        self._loop = publisher.core.loop
        self._queues: dict[str, _SenderQueue] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all waits with bus_closed."""
        self._closed.set()

    async def publish(self, draft: Draft, wait_s: float) -> PublishResult:
        """Publish as soon as the sender's earlier publishes and the limits allow, or return the refusal."""
        _check_wait(draft.subject, wait_s)
        deadline_s = self._deadline_s(wait_s)
        queue = self._queues.setdefault(draft.from_, _SenderQueue())
        queue.length += 1
        try:
            if await self._take_turn(queue, deadline_s):
                try:
                    return await self._publish_first(queue, draft, deadline_s)
                finally:
                    queue.refused = None
                    queue.turn.release()
            draft.held_by = queue.refused
            return await self._publisher.publish(draft)
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[draft.from_]

    def _deadline_s(self, wait_s: float) -> float:
        now_s = self._loop.time()
        handler = RUNNING.get()
        if handler is None:
            return now_s + wait_s
        left_s = max(0.0, handler.deadline_s - now_s)
        return now_s + min(wait_s, left_s - min(left_s * _HANDLER_RESERVE, _HANDLER_RESERVE_MAX_S))

    async def _take_turn(self, queue: _SenderQueue, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await queue.turn.acquire()
        except TimeoutError:
            return False

    async def _publish_first(self, queue: _SenderQueue, draft: Draft, deadline_s: float) -> PublishResult:
        pause_s = _FIRST_PAUSE_S
        while True:
            if self._closed.is_set():
                raise error("bus_closed", path=str(self._publisher.core.directory.root))
            draft.is_waiting = self._loop.time() < deadline_s
            result = await self._publisher.publish(draft)
            if not (draft.is_waiting and draft.is_refused_for_now):
                return result
            queue.refused = result.rejected[0]
            if self._is_own_mailbox(draft, queue.refused):
                deadline_s = self._loop.time()
            else:
                await self._pause(min(pause_s, deadline_s - self._loop.time()))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError), self._gate.opened():
            await asyncio.wait_for(self._closed.wait(), max(0.0, pause_s))

    def _is_own_mailbox(self, draft: Draft, refused: Rejection) -> bool:
        """Return True if only the publisher itself can make room: by ending its handler, or by an ack."""
        if refused.reason is not Reason.BACKPRESSURE:
            return False
        registry = self._publisher.core.ledger.registry
        own = registry.by_subject.get(draft.from_)
        handler = RUNNING.get()
        served = [] if handler is None else registry.resolve(handler.envelope.subject)
        return refused.endpoint_hash in {endpoint.hash for endpoint in (own, *served) if endpoint is not None}
