"""The lock service of a relay: acquire, renew, release, inspect and list, for HTTP and the stream.

It checks rights and rate, submits the operation to the store's writer, and answers after the commit. Answers are
values, refusals included; a failing store is an exception. Lists are read outside the writer. The decisions
themselves are in posthouse.relay.locks.decide.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from posthouse.model import lease
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import Denied, Grant, LockView, Released
from posthouse.model.limits import LOCK_BURST, LOCK_RATE_PER_S, SECOND_NS, WAIT_QUEUE_MAX, WAITERS_MAX
from posthouse.model.rate import Rate
from posthouse.relay.accept.authorize import Meshes, RateBuckets, Right
from posthouse.relay.locks.decide import Decider, Decision
from posthouse.relay.locks.wait_queue import WaitQueues
from posthouse.relay.locks.waiters import LockWaiters
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Inspect,
    ListedLock,
    ListLocks,
    LockAnswer,
    LockEntry,
    LockPage,
    OnLockAnswer,
    Release,
    Renew,
    lock_answer,
)

_CURSOR = msgspec.json.Decoder(tuple[str, str])


async def list_locks(store: RelayStore, meshes: Meshes, clock: Clock, node: str, request: ListLocks) -> LockPage:
    """Return the locks of one mesh, or of all meshes that a node may read, by mesh and resource."""
    if request.mesh is None:
        scope = meshes.readable(node)
    else:
        missing = right_error(meshes, node, request.mesh, Right.READ)
        if missing is not None:
            raise missing
        scope = frozenset({request.mesh})
    after = ("", "") if request.cursor is None else _read_cursor(request.cursor)
    entries = await store.locks(scope, after, request.limit)
    now_ns = clock.boot_ns()
    last = entries[-1] if len(entries) == request.limit else None
    return LockPage([_listed(entry, now_ns) for entry in entries], None if last is None else _lock_cursor(last))


def right_error(meshes: Meshes, node: str, mesh: str, right: Right) -> PosthouseError | None:
    """Return why a node lacks a right, or None; an outsider cannot learn from it which meshes exist."""
    refusal = meshes.authorization_error(node, mesh, right)
    if refusal is not None and refusal.code == "mesh_unknown":
        return error("not_member", node=node, mesh=mesh)
    return refusal


def _listed(entry: LockEntry, now_ns: int) -> ListedLock:
    view = lease.inspect(entry.row, entry.row.resource, now_ns)
    return ListedLock(entry.mesh, view.resource, view.held, view.owner, view.token, view.remaining_ms)


def _lock_cursor(entry: LockEntry) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((entry.mesh, entry.row.resource))).decode()


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        return _CURSOR.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, msgspec.DecodeError, ValueError) as fault:
        raise error("cursor_invalid", cursor=cursor[:80]) from fault


log = structlog.get_logger(__name__)
LockRequest = Acquire | Renew | Release | Inspect
_RIGHTS = {Acquire: Right.LOCK, Renew: Right.LOCK, Inspect: Right.READ}  # any holder may release
_NAMES: dict[type, str] = {Acquire: "acquire", Renew: "renew", Release: "release", Inspect: "inspect"}


def is_never_gone() -> bool:
    """Return False: the caller waits until it is answered."""
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
        self._waiters = LockWaiters(store, clock, self._decider, self._queues)
        self._buckets = RateBuckets(rate or Rate(LOCK_RATE_PER_S, LOCK_BURST))
        self._loop = asyncio.get_running_loop()
        self._observer: MetricsObserver = NullObserver()

    @property
    def waiters(self) -> int:
        """How many callers wait now."""
        return len(self._queues)

    def observe_with(self, observer: MetricsObserver) -> None:
        """Count operations and waits with this observer from now on."""
        self._observer = self._waiters.observer = observer

    def close(self) -> None:
        """Answer every waiter; operations that the writer has are still committed and answered."""
        self._waiters.close()

    def ask(
        self, node: str, request: LockRequest, is_gone: Callable[[], bool] = is_never_gone
    ) -> asyncio.Future[LockAnswer]:
        """Submit one operation of a node; the future is done after the commit.

        `is_gone` returns True once the caller has disconnected; only waits call it, on the writer's thread.
        """
        future: asyncio.Future[LockAnswer] = self._loop.create_future()
        self.submit(node, request, partial(_settle, future), lambda: future.done() or is_gone())
        return future

    def submit(self, node: str, request: LockRequest, on_answer: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Submit one operation as `ask` does; `on_answer` gets the answer, at once if it is refused here."""
        name = _NAMES[type(request)]
        refusal = self._refusal(node, request)
        if not self._meshes.rights(node, request.mesh):  # it may release what it holds, and learn nothing else
            on_answer = partial(_conceal, error("not_member", node=node, mesh=request.mesh), on_answer)
        if refusal is not None:
            self._observer.count("posthouse_relay_lock_operations_total", name, refusal.code)
            on_answer(refusal, None)
            return
        limit = None
        if type(request) is Acquire and request.wait_ms > 0:
            limit = self._queues.limit_reached((request.mesh, request.resource))
            if limit is None:
                self._waiters.enter(node, request, partial(self._count_answer, name, on_answer), is_gone)
                return
        self._store.submit_with_callback(
            self._work(node, request), partial(self._decided, on_answer, name, request, limit), is_short=True
        )

    async def list(self, node: str, request: ListLocks) -> LockPage:
        """Return a page of the locks that a node may see; it is not ordered with other operations."""
        return await list_locks(self._store, self._meshes, self._clock, node, request)

    def _work(self, node: str, request: LockRequest) -> Callable[[Unit], Decision]:
        decider = self._decider
        if isinstance(request, Acquire):
            return lambda unit: decider.acquire(unit, node, request)
        if isinstance(request, Renew):
            return lambda unit: decider.renew(unit, node, request)
        if isinstance(request, Release):
            return lambda unit: decider.release(unit, node, request)
        return lambda unit: decider.inspect(unit, request)

    def _decided(
        self,
        on_answer: OnLockAnswer,
        name: str,
        request: LockRequest,
        limit_reached: int | None,
        decision: Decision,
        failure: BaseException | None,
    ) -> None:
        if failure is not None:
            on_answer(None, failure)
            return
        self._waiters.apply((request.mesh, request.resource), decision)
        outcome = decision.outcome
        assert outcome is not None  # only a wait has none
        self._count_outcome(name, outcome)
        if limit_reached is not None and isinstance(outcome, Denied) and outcome.code == "held":
            on_answer(error("wait_queue_full", limit=limit_reached), None)
        else:
            on_answer(lock_answer(outcome, request.resource), None)

    def _refusal(self, node: str, request: LockRequest) -> PosthouseError | None:
        right = _RIGHTS.get(type(request))
        missing = None if right is None else right_error(self._meshes, node, request.mesh, right)
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

    def _count_answer(
        self, name: str, on_answer: OnLockAnswer, answer: LockAnswer | None, failure: BaseException | None
    ) -> None:
        if answer is not None:
            code = answer.code if isinstance(answer, PosthouseError) else "done"
            self._observer.count("posthouse_relay_lock_operations_total", name, code)
        on_answer(answer, failure)


def _conceal(
    refusal: PosthouseError, on_answer: OnLockAnswer, answer: LockAnswer | None, failure: BaseException | None
) -> None:
    on_answer(refusal if isinstance(answer, PosthouseError) else answer, failure)


def _settle(future: asyncio.Future[LockAnswer], answer: LockAnswer | None, failure: BaseException | None) -> None:
    if future.done():  # the caller has stopped waiting
        return
    if failure is not None:
        future.set_exception(failure)
    elif answer is None:
        future.cancel()
    else:
        future.set_result(answer)
