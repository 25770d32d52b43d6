"""The waiting room: the event loop's side of waiting for locks.

A waiter joins its queue first and asks the writer second, so no release can slip in between. It is answered once:
by a commit that served it, or by its last look. Before a last look it is withdrawn, so that no other
transaction can serve it meanwhile, and because answers come in commit order, whatever served it earlier has been heard
of by then: nobody is told "held" and holds the lock. The timer of a queue only makes somebody look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import Denied, Grant, LockRow
from posthouse.model.limits import SECOND_NS
from posthouse.relay.locks.decide import Decider, Decision, Served
from posthouse.relay.locks.wait_queue import Key, Waiter, WaitQueue, WaitQueues
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, OnLockAnswer, lock_answer

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 0.5  # boot time runs ahead of the loop's after a suspend: a timer must not trust its length
_AGAIN_S = 0.05  # until a writer that is full is asked again


class WaitingRoom:
    """Everybody who waits for a lock."""

    def __init__(self, store: RelayStore, clock: Clock, decider: Decider, queues: WaitQueues) -> None:
        self._store = store
        self._clock = clock
        self._decider = decider
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self.observer: MetricsObserver = NullObserver()
        self._is_closed = False

    def enter(self, owner: str, wanted: Acquire, told: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Wait for a lock at the end of its queue; `told` hears the grant or the refusal."""
        key = (wanted.mesh, wanted.resource)
        queue, waiter = self._queues.add(key, owner, wanted, self._clock.boot_ns(), told, is_gone)
        until = self._loop.time() + wanted.wait_ms / 1000
        try:
            self._submit(lambda unit: self._decider.join(unit, waiter), partial(self._joined, queue, waiter, until))
        except PosthouseError:
            self._queues.remove(queue, waiter)
            raise

    def note(self, key: Key, decision: Decision) -> None:
        """Answer those whom a commit served, and look again when the lease ends for those who still wait."""
        queue = self._queues.get(key)
        for served in decision.served:
            self._settle(served, queue)
        outcome = decision.outcome
        if queue is None or not queue.waiters:
            return
        if isinstance(outcome, Grant):
            self._repeat(queue, outcome)
        if decision.row is not None:
            self._watch(queue, decision.row)

    def close(self) -> None:
        """Tell everybody who waits that the relay stops."""
        self._is_closed = True
        for queue in self._queues:
            for waiter in list(queue.waiters.values()):
                self._answer(queue, waiter, error("relay_stopping"))

    def _joined(self, queue: WaitQueue, waiter: Waiter, until: float, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._look_last(queue, waiter)  # a later commit may have served it: only its last look knows
            return
        self.note(queue.key, result)
        outcome = result.outcome
        if waiter.is_answered:
            return
        if outcome is None:
            if not waiter.is_withdrawn:  # most are answered by now: only who really waits needs an alarm
                waiter.alarm = self._loop.call_at(until, self._look_last, queue, waiter)
            return
        if isinstance(outcome, Denied) and outcome.code == "held_by_self":
            self._look_last(queue, waiter)
            return
        self._answer(queue, waiter, lock_answer(outcome, waiter.wanted.resource))

    def _look_last(self, queue: WaitQueue, waiter: Waiter) -> None:
        """End a wait: nobody else may serve this waiter from now on."""
        if waiter.is_answered or self._is_closed:
            return
        waiter.is_withdrawn = True
        try:
            self._submit(
                lambda unit: self._decider.join(unit, waiter, is_last_look=True), partial(self._looked, queue, waiter)
            )
        except PosthouseError:
            waiter.alarm = self._loop.call_later(_AGAIN_S, self._look_last, queue, waiter)

    def _looked(self, queue: WaitQueue, waiter: Waiter, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._answer(queue, waiter, result)
            return
        self.note(queue.key, result)
        if result.outcome is not None:
            self._answer(queue, waiter, lock_answer(result.outcome, waiter.wanted.resource))
        elif not waiter.is_answered:  # its caller is gone
            self._queues.remove(queue, waiter)
            waiter.answer(None)

    def _settle(self, served: Served, queue: WaitQueue | None) -> None:
        waiter, outcome = served.waiter, served.outcome
        if isinstance(outcome, Grant):
            self.observer.observe("posthouse_relay_lock_wait_seconds", served.waited_ns / SECOND_NS)
            if outcome.took_over:
                self.observer.count("posthouse_relay_lock_take_overs_total")
        if queue is not None:
            self._answer(queue, waiter, lock_answer(outcome, waiter.wanted.resource))
            if isinstance(outcome, Grant):
                self._repeat(queue, outcome)

    def _repeat(self, queue: WaitQueue, grant: Grant) -> None:
        """Let those who wait under the request id that was just granted look again: theirs is the same answer."""
        if grant.record is None:
            return
        for waiter in tuple(queue.by_request.get((grant.row.owner, grant.record.request_id), ())):
            self._look_last(queue, waiter)

    def _answer(self, queue: WaitQueue, waiter: Waiter, answer: LockAnswer) -> None:
        self._queues.remove(queue, waiter)
        waiter.answer(answer)

    def _watch(self, queue: WaitQueue, row: LockRow) -> None:
        queue.deadline_boot_ns = 0 if row.is_released else row.deadline_boot_ns
        if queue.timer is not None:
            queue.timer.cancel()
        rest_s = (queue.deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS
        queue.timer = self._loop.call_later(min(max(rest_s, 0.0), LOOK_EVERY_S), self._wake, queue)

    def _wake(self, queue: WaitQueue) -> None:
        """Forget who is gone; let the writer look at the lock when its lease should be over."""
        for waiter in [each for each in queue.waiters.values() if each.is_gone()]:
            self.observer.count("posthouse_relay_lock_waiters_gone_total")
            self._queues.remove(queue, waiter)
        if not queue.waiters or self._is_closed:
            return
        rest_s = (queue.deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS
        if rest_s > 0:
            queue.timer = self._loop.call_later(min(rest_s, LOOK_EVERY_S), self._wake, queue)
            return
        try:
            self._submit(lambda unit: self._decider.turn(unit, *queue.key), partial(self._woken, queue))
        except PosthouseError:
            queue.timer = self._loop.call_later(_AGAIN_S, self._wake, queue)

    def _woken(self, queue: WaitQueue, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            queue.timer = self._loop.call_later(LOOK_EVERY_S, self._wake, queue)
        else:
            self.note(queue.key, result)

    def _submit(self, work: Callable[[Unit], Decision], heard: Callable[[Decision | PosthouseError], None]) -> None:
        self._store.submit_with_callback(work, partial(_hear, heard))


def _hear(
    heard: Callable[[Decision | PosthouseError], None], decision: Decision, failure: BaseException | None
) -> None:
    """Hand on what became of a unit of work; a defect counts as a failure of the relay."""
    if failure is None:
        heard(decision)
        return
    if not isinstance(failure, PosthouseError):
        log.error("lock_decision_failed", exc_info=failure)
        failure = error("internal", reason=type(failure).__name__)
    heard(failure)
