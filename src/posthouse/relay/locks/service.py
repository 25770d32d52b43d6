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
from posthouse.relay.locks.answers import Answer, LockPage, answer_of
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
        name = _NAMES[type(wanted)]
        refusal = self._refusal(node, wanted)
        if refusal is not None:
            return self._told(name, refusal)
        if isinstance(wanted, Acquire) and wanted.wait_ms > 0:
            limit = self._queues.full_at((wanted.mesh, wanted.resource))
            if limit is None:
                answer = self._room.enter(node, wanted, is_gone)
                answer.add_done_callback(partial(self._count_answer, name))
                return answer
            return self._submit(name, node, wanted, limit)
        return self._submit(name, node, wanted)

    async def list(self, node: str, wanted: ListLocks) -> LockPage:
        """Return part of the locks that a node may see: a picture for people, not part of the order of things."""
        return await list_locks(self._store, self._meshes, self._clock, node, wanted)

    def _submit(self, name: str, node: str, wanted: Wanted, full: int | None = None) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        work = self._work(node, wanted)
        self._store.submit(work).add_done_callback(partial(self._decided, answer, name, wanted, full))
        return answer

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
        answer: asyncio.Future[Answer],
        name: str,
        wanted: Wanted,
        full: int | None,
        future: asyncio.Future[Decision],
    ) -> None:
        failure = future.exception()
        if failure is not None:
            if not answer.done():
                answer.set_exception(failure)
            return
        decision = future.result()
        self._room.note((wanted.mesh, wanted.resource), decision)
        outcome = decision.outcome
        assert outcome is not None  # only a wait is left without one
        self._count_outcome(name, outcome)
        if not answer.done():
            is_full = full is not None and isinstance(outcome, Denied) and outcome.code == "held"
            told = error("wait_queue_full", limit=full) if is_full else answer_of(outcome, wanted.resource)
            answer.set_result(told)

    def _refusal(self, node: str, wanted: Wanted) -> PosthouseError | None:
        right = _RIGHTS.get(type(wanted))
        missing = None if right is None else self._meshes.missing(node, wanted.mesh, right)
        if missing is not None:
            return missing
        wait_ns = self._buckets.take(node, self._clock.boot_ns())
        if not wait_ns:
            return None
        return error("locks_too_fast", node=node, rate=self._buckets.rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _told(self, name: str, refusal: PosthouseError) -> asyncio.Future[Answer]:
        self._observer.count("posthouse_relay_lock_operations_total", name, refusal.code)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        answer.set_result(refusal)
        return answer

    def _count_outcome(self, name: str, outcome: Grant | Released | Denied | LockView) -> None:
        code = outcome.code if isinstance(outcome, Denied) else "done"
        self._observer.count("posthouse_relay_lock_operations_total", name, code)
        if isinstance(outcome, Grant) and outcome.took_over:
            self._observer.count("posthouse_relay_lock_take_overs_total")

    def _count_answer(self, name: str, future: asyncio.Future[Answer]) -> None:
        if not future.cancelled():
            answer = future.result()
            code = answer.code if isinstance(answer, PosthouseError) else "done"
            self._observer.count("posthouse_relay_lock_operations_total", name, code)
