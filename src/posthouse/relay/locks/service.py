"""The locks of a relay: acquire, renew, release, inspect, list; the same for every way in.

Checks who may ask, hands the question to the one writer, and answers after the commit. Answers are values, refusals
included; a store that fails is an exception. Everything belongs to the event loop; what is decided, and
when, is posthouse.relay.locks.decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from posthouse.model.bucket import Rate
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import Denied, Grant, LockView, Released
from posthouse.model.limits import (
    LOCK_BURST,
    LOCK_RATE_PER_S,
    SECOND_NS,
    WAIT_QUEUE_MAX,
    WAITERS_MAX,
)
from posthouse.relay.accept.buckets import Buckets
from posthouse.relay.locks.answers import Answer, LockPage, Told, answer_of
from posthouse.relay.locks.arguments import Acquire, Inspect, ListLocks, Release, Renew
from posthouse.relay.locks.decide import Decider, Decision
from posthouse.relay.locks.listing import list_locks
from posthouse.relay.locks.observer import Nobody, Observer
from posthouse.relay.locks.waiters import WaitQueues
from posthouse.relay.locks.waiting_room import WaitingRoom
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.store.interface import RelayStore, Unit

log = structlog.get_logger(__name__)
Wanted = Acquire | Renew | Release | Inspect
_RIGHTS = {Acquire: Right.LOCK, Renew: Right.LOCK, Inspect: Right.READ}  # whoever holds a lock may give it back
_NAMES: dict[type, str] = {Acquire: "acquire", Renew: "renew", Release: "release", Inspect: "inspect"}


def is_never_gone() -> bool:
    """Stand for a caller that waits whatever happens."""
    return False


class Locks:
    """The locks of one run of a relay."""

    def __init__(
        self,
        store: RelayStore,
        meshes: Meshes,
        clock: Clock,
        run_id: str,
        *,
        max_per_lock: int = WAIT_QUEUE_MAX,
        max_waiters: int = WAITERS_MAX,
        rate: Rate | None = None,
    ) -> None:
        self.run_id = run_id
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._queues = WaitQueues(max_per_lock, max_waiters)
        self._decider = Decider(run_id, self._queues)
        self._room = WaitingRoom(store, clock, self._decider, self._queues)
        self._buckets = Buckets(rate or Rate(LOCK_RATE_PER_S, LOCK_BURST))
        self._loop = asyncio.get_running_loop()
        self._observer: Observer = Nobody()

    @property
    def waiters(self) -> int:
        """How many wait now."""
        return len(self._queues)

    def tell(self, observer: Observer) -> None:
        """Let the metrics hear what happens from now on."""
        self._observer = self._room.observer = observer

    def close(self) -> None:
        """Answer everybody who waits; what is with the writer is still committed and answered."""
        self._room.close()

    def ask(self, node: str, wanted: Wanted, is_gone: Callable[[], bool] = is_never_gone) -> asyncio.Future[Answer]:
        """Do one operation for a node; the future is done after the commit.

        `is_gone` tells whether the caller is still there; only a wait asks it, and on the writer's thread.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.put(node, wanted, partial(_settle, future), lambda: future.done() or is_gone())
        return future

    def put(self, node: str, wanted: Wanted, told: Told, is_gone: Callable[[], bool]) -> None:
        """Do one operation as `ask` does; `told` is called with the answer, at once when it is refused here."""
        name = _NAMES[type(wanted)]
        refusal = self._refusal(node, wanted)
        if refusal is not None:
            self._observer.count("posthouse_relay_lock_operations_total", name, refusal.code)
            told(refusal, None)
            return
        limit = None
        if type(wanted) is Acquire and wanted.wait_ms > 0:
            limit = self._queues.full_at((wanted.mesh, wanted.resource))
            if limit is None:
                self._room.enter(node, wanted, partial(self._count_answer, name, told), is_gone)
                return
        self._store.hand_in(self._work(node, wanted), partial(self._decided, told, name, wanted, limit))

    async def list(self, node: str, wanted: ListLocks) -> LockPage:
        """Return part of the locks that a node may see: a picture for people, not part of the order of things."""
        return await list_locks(self._store, self._meshes, self._clock, node, wanted)

    def _work(self, node: str, wanted: Wanted) -> Callable[[Unit], Decision]:
        decider = self._decider
        if isinstance(wanted, Acquire):
            return lambda unit: decider.acquire(unit, node, wanted)
        if isinstance(wanted, Renew):
            return lambda unit: decider.renew(unit, node, wanted)
        if isinstance(wanted, Release):
            return lambda unit: decider.release(unit, node, wanted)
        return lambda unit: decider.inspect(unit, wanted)

    def _decided(
        self,
        told: Told,
        name: str,
        wanted: Wanted,
        full: int | None,
        decision: Decision,
        failure: BaseException | None,
    ) -> None:
        if failure is not None:
            told(None, failure)
            return
        self._room.note((wanted.mesh, wanted.resource), decision)
        outcome = decision.outcome
        assert outcome is not None  # only a wait is left without one
        self._count_outcome(name, outcome)
        is_full = full is not None and isinstance(outcome, Denied) and outcome.code == "held"
        told(error("wait_queue_full", limit=full) if is_full else answer_of(outcome, wanted.resource), None)

    def _refusal(self, node: str, wanted: Wanted) -> PosthouseError | None:
        right = _RIGHTS.get(type(wanted))
        missing = None if right is None else self._meshes.missing(node, wanted.mesh, right)
        if missing is not None:
            return missing
        wait_ns = self._buckets.take(node, self._clock.boot_ns())
        if not wait_ns:
            return None
        return error("locks_too_fast", node=node, rate=self._buckets.rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _count_outcome(self, name: str, outcome: Grant | Released | Denied | LockView) -> None:
        code = outcome.code if isinstance(outcome, Denied) else "done"
        self._observer.count("posthouse_relay_lock_operations_total", name, code)
        if isinstance(outcome, Grant) and outcome.took_over:
            self._observer.count("posthouse_relay_lock_take_overs_total")

    def _count_answer(self, name: str, told: Told, answer: Answer | None, failure: BaseException | None) -> None:
        if answer is not None:
            code = answer.code if isinstance(answer, PosthouseError) else "done"
            self._observer.count("posthouse_relay_lock_operations_total", name, code)
        told(answer, failure)


def _settle(future: asyncio.Future[Answer], answer: Answer | None, failure: BaseException | None) -> None:
    if future.done():  # its caller does not wait any more
        return
    if failure is not None:
        future.set_exception(failure)
    elif answer is None:
        future.cancel()
    else:
        future.set_result(answer)
