"""The event loop's side of waiting for locks: it enters waiters, answers them after commits, and ends their waits.

A waiter joins its queue first and submits its unit of work second, so no release can slip in between. It is answered
once: by a commit that served it, or by its final check. Before the final check the waiter is withdrawn, so no other
transaction can serve it meanwhile. Commits are reported in order, so by then the loop has seen every earlier commit
that served it: no caller gets "held" and owns the lock. The timer of a queue only triggers a check by the writer.
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
CHECK_EVERY_S = 0.5  # boot time runs ahead of the loop's clock after a suspend, so a timer must not be longer
_RETRY_S = 0.05  # after the writer refused a unit of work because it is full


class LockWaiters:
    """All waiters of a relay."""

    def __init__(self, store: RelayStore, clock: Clock, decider: Decider, queues: WaitQueues) -> None:
        self._store = store
        self._clock = clock
        self._decider = decider
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self.observer: MetricsObserver = NullObserver()
        self._is_closed = False

    def enter(self, owner: str, request: Acquire, on_answer: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Wait for a lock at the end of its queue; `on_answer` gets the grant or the refusal."""
        key = (request.mesh, request.resource)
        queue, waiter = self._queues.add(key, owner, request, self._clock.boot_ns(), on_answer, is_gone)
        until = self._loop.time() + request.wait_ms / 1000
        try:
            self._submit(lambda unit: self._decider.join(unit, waiter), partial(self._joined, queue, waiter, until))
        except PosthouseError:
            self._queues.remove(queue, waiter)
            raise

    def apply(self, key: Key, decision: Decision) -> None:
        """Answer the waiters that a commit served, and schedule a check for those that still wait."""
        queue = self._queues.get(key)
        for served in decision.served:
            self._settle(served, queue)
        outcome = decision.outcome
        if queue is None or not queue.waiters:
            return
        if isinstance(outcome, Grant):
            self._check_same_request(queue, outcome)
        if decision.row is not None:
            self._schedule_check(queue, decision.row)

    def close(self) -> None:
        """Answer every waiter that the relay is stopping."""
        self._is_closed = True
        for queue in self._queues:
            for waiter in list(queue.waiters.values()):
                self._answer(queue, waiter, error("relay_stopping"))

    def _joined(self, queue: WaitQueue, waiter: Waiter, until: float, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._final_check(queue, waiter)  # a later commit may have served the waiter: only a final check knows
            return
        self.apply(queue.key, result)
        outcome = result.outcome
        if waiter.is_answered:
            return
        if outcome is None:
            if not waiter.is_withdrawn:  # most waiters are answered by now: the others need a timeout
                waiter.timeout = self._loop.call_at(until, self._final_check, queue, waiter)
            return
        if isinstance(outcome, Denied) and outcome.code == "held_by_self":
            self._final_check(queue, waiter)
            return
        self._answer(queue, waiter, lock_answer(outcome, waiter.request.resource))

    def _final_check(self, queue: WaitQueue, waiter: Waiter) -> None:
        """End a wait: from now on no other transaction may serve this waiter."""
        if waiter.is_answered or self._is_closed:
            return
        waiter.is_withdrawn = True
        try:
            self._submit(
                lambda unit: self._decider.join(unit, waiter, is_final=True), partial(self._checked, queue, waiter)
            )
        except PosthouseError:
            waiter.timeout = self._loop.call_later(_RETRY_S, self._final_check, queue, waiter)

    def _checked(self, queue: WaitQueue, waiter: Waiter, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._answer(queue, waiter, result)
            return
        self.apply(queue.key, result)
        if result.outcome is not None:
            self._answer(queue, waiter, lock_answer(result.outcome, waiter.request.resource))
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
            self._answer(queue, waiter, lock_answer(outcome, waiter.request.resource))
            if isinstance(outcome, Grant):
                self._check_same_request(queue, outcome)

    def _check_same_request(self, queue: WaitQueue, grant: Grant) -> None:
        """End the waits under the request id that was just granted: they get the same answer."""
        if grant.record is None:
            return
        for waiter in tuple(queue.by_request.get((grant.row.owner, grant.record.request_id), ())):
            self._final_check(queue, waiter)

    def _answer(self, queue: WaitQueue, waiter: Waiter, answer: LockAnswer) -> None:
        self._queues.remove(queue, waiter)
        waiter.answer(answer)

    def _schedule_check(self, queue: WaitQueue, row: LockRow) -> None:
        queue.deadline_boot_ns = 0 if row.is_released else row.deadline_boot_ns
        if queue.timer is not None:
            queue.timer.cancel()
        rest_s = (queue.deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS
        queue.timer = self._loop.call_later(min(max(rest_s, 0.0), CHECK_EVERY_S), self._check_queue, queue)

    def _check_queue(self, queue: WaitQueue) -> None:
        """Remove waiters whose callers are gone; let the writer serve the queue when the lease should be over."""
        for waiter in [each for each in queue.waiters.values() if each.is_gone()]:
            self.observer.count("posthouse_relay_lock_waiters_gone_total")
            self._queues.remove(queue, waiter)
        if not queue.waiters or self._is_closed:
            return
        rest_s = (queue.deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS
        if rest_s > 0:
            queue.timer = self._loop.call_later(min(rest_s, CHECK_EVERY_S), self._check_queue, queue)
            return
        try:
            self._submit(lambda unit: self._decider.serve(unit, *queue.key), partial(self._queue_served, queue))
        except PosthouseError:
            queue.timer = self._loop.call_later(_RETRY_S, self._check_queue, queue)

    def _queue_served(self, queue: WaitQueue, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            queue.timer = self._loop.call_later(CHECK_EVERY_S, self._check_queue, queue)
        else:
            self.apply(queue.key, result)

    def _submit(self, work: Callable[[Unit], Decision], on_done: Callable[[Decision | PosthouseError], None]) -> None:
        self._store.submit_with_callback(work, partial(_report, on_done))


def _report(
    on_done: Callable[[Decision | PosthouseError], None], decision: Decision, failure: BaseException | None
) -> None:
    """Pass on the result of a unit of work; a defect counts as an internal error of the relay."""
    if failure is None:
        on_done(decision)
        return
    if not isinstance(failure, PosthouseError):
        log.error("lock_decision_failed", exc_info=failure)
        failure = error("internal", reason=type(failure).__name__)
    on_done(failure)
