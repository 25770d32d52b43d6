"""The event loop's side of waiting for locks: adds waiters, answers them after commits, and ends their waits.

A waiter joins its queues first and submits its unit of work second, so no release can slip in between. It gets exactly
one answer: from the commit that served it, or from its final check. Before the final check the waiter is withdrawn, so
no other transaction can serve it meanwhile. Commits are reported in order, so at that point the loop has seen every
earlier commit that could have served it: no caller gets "held" for a lock that it owns. Each lease that waiters wait
for has an alarm; when one is due, or a waiter has left, the writer checks whether others can be served. No timer ends a
lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import Denied, Grant, LockRow
from posthouse.model.limits import SECOND_NS
from posthouse.model.lock_scope import Asked, Scope
from posthouse.relay.locks.decide import Decider, Decision, Served
from posthouse.relay.locks.wait_queue import Waiter, WaitQueues
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import LockStore, Unit
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Break,
    Inspect,
    LockAnswer,
    OnLockAnswer,
    Release,
    Renew,
    lock_answer,
)

log = structlog.get_logger(__name__)
LockRequest = Acquire | Renew | Release | Break | Inspect
CHECK_EVERY_S = 0.5  # boot time runs ahead of the loop's clock after a suspend, so a timer must not be longer
_RETRY_S = 0.05  # after the writer refused a unit of work because it is full


def is_short_request(request: LockRequest) -> bool:
    """Return True if the operation reads and writes a few rows only."""
    return not (type(request) is Acquire and request.tree) and not getattr(request, "also", ())


class LockWaiters:
    """All waiters of a relay."""

    def __init__(self, store: LockStore, clock: Clock, decider: Decider, queues: WaitQueues) -> None:
        self._store = store
        self._clock = clock
        self._decider = decider
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self.observer: MetricsObserver = NullObserver()
        #: called with the mesh and the leases that a commit changed
        self.on_change: Callable[[str, Sequence[LockRow]], None] = lambda _mesh, _rows: None
        #: mesh -> name and tree of a lease -> boot time of its end, as far as the loop knows: only the writer decides
        self._alarms: dict[str, dict[tuple[str, bool], int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def enter(self, owner: str, request: Acquire, on_answer: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Wait for a lock at the end of its queue; `on_answer` gets the grant or the refusal."""
        waiter = self._queues.add(owner, request, self._clock.boot_ns(), on_answer, is_gone)
        until = self._loop.time() + request.wait_ms / 1000
        try:
            self._submit(
                lambda unit: self._decider.join(unit, waiter),
                partial(self._joined, waiter, until),
                is_short=is_short_request(request),
            )
        except PosthouseError:
            self._queues.remove(waiter)
            raise

    def apply(self, mesh: str, decision: Decision) -> None:
        """Answer the waiters that a commit served, and set alarms for the leases that others wait for."""
        for served in decision.served:
            self._settle(served)
        if decision.changed:
            self.on_change(mesh, decision.changed)
        if not self._queues:
            return
        alarms = self._alarms.setdefault(mesh, {})
        for row in (*decision.changed, *decision.blockers):
            key = (row.resource, row.is_tree)
            is_known = alarms.get(key) == row.deadline_boot_ns
            if not row.is_released and not is_known and self._queues.has_waiters(mesh, row):
                alarms[key] = row.deadline_boot_ns
                self._set_timer(row.deadline_boot_ns)
        if self._timer is None:
            self._set_timer(None)

    def withdraw(self, mesh: str, refusal_of: Callable[[str], PosthouseError | None]) -> None:
        """End the waits of nodes that may no longer lock in a mesh; `refusal_of` says why, given the node."""
        known: dict[str, PosthouseError | None] = {}
        for waiter in self._queues if self._queues else ():
            owner = waiter.holder[0]
            if waiter.request.mesh != mesh or waiter.is_withdrawn:
                continue
            if owner not in known:
                known[owner] = refusal_of(owner)
            refusal = known[owner]
            if refusal is not None:
                waiter.is_withdrawn = True
                self._leave(waiter, refusal)

    def close(self, reason: PosthouseError) -> None:
        """Answer every waiter with the reason why it cannot wait any longer."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._queues:
            self._answer(waiter, reason)

    def _joined(self, waiter: Waiter, until: float, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._final_check(waiter)  # a later commit may have served the waiter: only a final check knows
            return
        outcome = result.outcome
        if outcome is not None:
            self._queues.remove(waiter)  # first, or its own lease would get an alarm
        self.apply(waiter.request.mesh, result)
        if waiter.is_answered:
            return
        if outcome is None:
            if not waiter.is_withdrawn:  # most waiters are answered by now: the others need a timeout
                waiter.timeout = self._loop.call_at(until, self._final_check, waiter)
            return
        self._answer_outcome(waiter, outcome)

    def _final_check(self, waiter: Waiter) -> None:
        """End a wait: from now on no other transaction may serve this waiter."""
        if waiter.is_answered or self._is_closed:
            return
        waiter.is_withdrawn = True
        try:
            self._submit(lambda unit: self._decider.join(unit, waiter, is_final=True), partial(self._checked, waiter))
        except PosthouseError:
            waiter.timeout = self._loop.call_later(_RETRY_S, self._final_check, waiter)

    def _checked(self, waiter: Waiter, result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._answer(waiter, result)
            return
        self.apply(waiter.request.mesh, result)
        if result.outcome is not None:
            self._answer_outcome(waiter, result.outcome)
        elif not waiter.is_answered:  # its caller is gone
            self._answer(waiter, None)

    def _leave(self, waiter: Waiter, refusal: PosthouseError | None) -> None:
        """Answer a withdrawn waiter once no commit can have served it, and serve those behind it."""
        if self._is_closed:
            return
        try:
            self._submit(lambda unit: self._decider.leave(unit, waiter), partial(self._left, waiter, refusal))
        except PosthouseError:
            self._loop.call_later(_RETRY_S, self._leave, waiter, refusal)

    def _left(self, waiter: Waiter, refusal: PosthouseError | None, result: Decision | PosthouseError) -> None:
        self._answer(waiter, refusal)
        if isinstance(result, Decision):
            self.apply(waiter.request.mesh, result)

    def _settle(self, served: Served) -> None:
        outcome = served.outcome
        if isinstance(outcome, Grant):
            self.observer.observe("posthouse_relay_lock_wait_seconds", served.waited_ns / SECOND_NS)
            if outcome.took_over:
                self.observer.count("posthouse_relay_lock_take_overs_total")
        self._answer_outcome(served.waiter, outcome)

    def _answer_outcome(self, waiter: Waiter, outcome: object) -> None:
        assert isinstance(outcome, Grant | Denied)  # the outcomes of an acquire
        self._answer(waiter, lock_answer(outcome, waiter.request.resource))

    def _answer(self, waiter: Waiter, answer: LockAnswer | None) -> None:
        self._queues.remove(waiter)
        waiter.answer(answer)

    def _set_timer(self, deadline_boot_ns: int | None) -> None:
        """Check again at this time, and at least every half second while clients wait."""
        delay_s = CHECK_EVERY_S
        if deadline_boot_ns is not None:
            delay_s = min(max((deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS, 0.0), CHECK_EVERY_S)
        when = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        """Remove waiters whose callers are gone; let the writer serve those whose blocking lease should be over."""
        self._timer = None
        if self._is_closed:
            return
        scopes: dict[str, list[Scope]] = {}
        for waiter in self._queues:
            if waiter.is_gone() and not waiter.is_withdrawn:
                self.observer.count("posthouse_relay_lock_waiters_gone_total")
                self._answer(waiter, None)
                scopes.setdefault(waiter.request.mesh, []).extend(waiter.claims)
        now_ns = self._clock.boot_ns()
        for mesh, alarms in self._alarms.items():
            for key in [key for key, deadline_ns in alarms.items() if deadline_ns <= now_ns]:
                del alarms[key]
                scopes.setdefault(mesh, []).append(Asked(key[0], "", is_tree=key[1]))
        for mesh, changed in scopes.items():
            self._serve(mesh, changed)
        if self._queues:
            soonest = min((each for alarms in self._alarms.values() for each in alarms.values()), default=None)
            self._set_timer(soonest)
        else:
            self._alarms.clear()

    def _serve(self, mesh: str, scopes: Sequence[Scope]) -> None:
        if self._is_closed:
            return
        try:
            self._submit(lambda unit: self._decider.serve(unit, mesh, scopes), partial(self._served, mesh, scopes))
        except PosthouseError:
            self._loop.call_later(_RETRY_S, self._serve, mesh, scopes)

    def _served(self, mesh: str, scopes: Sequence[Scope], result: Decision | PosthouseError) -> None:
        if isinstance(result, PosthouseError):
            self._loop.call_later(CHECK_EVERY_S, self._serve, mesh, scopes)
        else:
            self.apply(mesh, result)

    def _submit(
        self,
        work: Callable[[Unit], Decision],
        on_done: Callable[[Decision | PosthouseError], None],
        *,
        is_short: bool = False,
    ) -> None:
        self._store.submit_with_callback(work, partial(_report, on_done), is_short=is_short)


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
