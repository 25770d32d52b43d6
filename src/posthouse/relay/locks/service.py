"""The lock service of a relay: acquire, renew, release, break, inspect and list, for HTTP and the stream.

It checks rights and rate, submits the operation to the store's writer, and answers after the commit. Answers are
values, refusals included; a failing store is an exception. Lists are read outside the writer. Tokens and sessions are
shown to the holder's node and to admins. The decisions themselves are in posthouse.relay.locks.decide.
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
from posthouse.model.lease import Denied, Grant, LockView
from posthouse.model.limits import LOCK_BURST, LOCK_RATE_PER_S, SECOND_NS, WAIT_QUEUE_MAX, WAITERS_MAX
from posthouse.model.lock_api import LockList, LockStatus, LockSummary
from posthouse.model.lock_scope import Asked
from posthouse.model.rate import Rate
from posthouse.relay.accept.mesh_registry import Meshes, Right, Rights
from posthouse.relay.accept.rates import RateBuckets
from posthouse.relay.locks.decide import Decider, Decision
from posthouse.relay.locks.wait_queue import WaitQueues
from posthouse.relay.locks.waiters import LockRequest, LockWaiters, is_short_request
from posthouse.relay.locks.watches import LockWatch, LockWatches, OnView
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import LockStore, Unit
from posthouse.relay.store.shared_store import MeshesChanged, if_current
from posthouse.relay.wire.lock_operations import (
    OVERLAPS_MAX,
    Acquire,
    Break,
    Inspect,
    ListLocks,
    LockAnswer,
    LockEntry,
    LockPosition,
    OnLockAnswer,
    Outcome,
    Release,
    Renew,
    Watch,
    holder_of,
    lock_answer,
    mode_of,
)

_CURSOR = msgspec.json.Decoder(tuple[str, str, str, str])


def right_error(meshes: Meshes, node: str, mesh: str, right: Right) -> PosthouseError | None:
    """Return why a node lacks a right, or None; an outsider cannot learn from it which meshes exist."""
    refusal = meshes.authorization_error(node, mesh, right)
    if refusal is not None and refusal.code == "mesh_unknown":
        return error("not_member", node=node, mesh=mesh)
    return refusal


class LockLists:
    """Shows locks to nodes: lists, and the state of one lock."""

    def __init__(self, store: LockStore, meshes: Meshes, clock: Clock, queues: WaitQueues) -> None:
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._queues = queues

    async def page(self, node: str, request: ListLocks) -> LockList:
        """Return the locks of one mesh, or of all meshes that a node may read, by mesh and resource."""
        if request.mesh is None:
            scope = self._meshes.readable(node)
        else:
            missing = right_error(self._meshes, node, request.mesh, Right.READ)
            if missing is not None:
                raise missing
            scope = frozenset({request.mesh})
        after = ("", "", "", "") if request.cursor is None else _read_cursor(request.cursor)
        entries = await self._store.locks(scope, after, request.limit)
        now_ns = self._clock.boot_ns()
        last = entries[-1] if len(entries) == request.limit else None
        locks = [self._listed(node, entry, now_ns) for entry in entries]
        return LockList(locks, None if last is None else _lock_cursor(last))

    def state(self, node: str, mesh: str, view: LockView, waiting: int) -> LockStatus:
        """Return what a node may know about a lock."""
        now_ns = self._clock.boot_ns()
        is_plain = len(view.holders) == 1 and _is_plain(view.holders[0], view.resource)
        shown = () if is_plain else view.holders[:OVERLAPS_MAX]
        return LockStatus(
            view.resource,
            view.held,
            view.owner,
            view.token if self._may_see_token(node, mesh, view.owner or view.last_owner) else 0,
            view.remaining_ms,
            tuple([holder_of(row, now_ns, is_masked=not self._may_see_token(node, mesh, row.owner)) for row in shown]),
            waiting,
        )

    def _listed(self, node: str, entry: LockEntry, now_ns: int) -> LockSummary:
        row, mesh = entry.row, entry.mesh
        is_held = lease.is_active(row, now_ns)
        is_shown = self._may_see_token(node, mesh, row.owner)
        return LockSummary(
            mesh,
            row.resource,
            is_held,
            row.owner if is_held else None,
            row.token if is_shown else 0,
            lease.remaining_ms(row, now_ns) if is_held else 0,
            mode_of(row) if is_held else "exclusive",
            is_held and row.is_tree,
            row.session if is_held and is_shown else "",
            self._queues.waiting_for(mesh, Asked(row.resource, "")) if is_held else 0,
        )

    def _may_see_token(self, node: str, mesh: str, owner: str | None) -> bool:
        return node == owner or Right.ADMINISTER in self._meshes.rights(node, mesh)


def _is_plain(row: lease.LockRow, resource: str) -> bool:
    return row.resource == resource and not row.is_tree and not row.is_shared and not row.session


def _lock_cursor(entry: LockEntry) -> str:
    row = entry.row
    return base64.urlsafe_b64encode(msgspec.json.encode((entry.mesh, row.resource, row.owner, row.session))).decode()


def _read_cursor(cursor: str) -> LockPosition:
    try:
        return _CURSOR.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, msgspec.DecodeError, ValueError) as fault:
        raise error("cursor_invalid", cursor=cursor[:80]) from fault


log = structlog.get_logger(__name__)
_RIGHTS = {  # any holder may release
    Acquire: Right.LOCK,
    Renew: Right.LOCK,
    Break: Right.ADMINISTER,
    Inspect: Right.READ,
    Watch: Right.READ,
}
_NAMES: dict[type, str] = {
    Acquire: "acquire",
    Renew: "renew",
    Release: "release",
    Break: "break",
    Inspect: "inspect",
}


def is_never_gone() -> bool:
    """Return False: the operation has no answer yet, so its caller waits."""
    return False


class Locks:
    """The locks of one run of a relay."""

    def __init__(
        self,
        store: LockStore,
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
        self._lists = LockLists(store, meshes, clock, self._queues)
        self.watches = LockWatches(clock, self._view, self._lists.state)
        self._waiters.on_change = self.watches.on_change
        meshes.watch_rights(self._end_unauthorized)
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

    def close(self, reason: PosthouseError | None = None) -> None:
        """Answer every waiter; operations that the writer has are still committed and answered."""
        self._waiters.close(reason or error("relay_stopping"))
        self.watches.close()

    def _end_unauthorized(self, mesh: str) -> None:
        """End the waits and watches of nodes that lost the right to them."""
        self._waiters.withdraw(mesh, lambda node: right_error(self._meshes, node, mesh, Right.LOCK))
        self.watches.end_unauthorized(mesh, lambda node: right_error(self._meshes, node, mesh, Right.READ))

    def ask(
        self, node: str, request: LockRequest, is_gone: Callable[[], bool] = is_never_gone
    ) -> asyncio.Future[LockAnswer]:
        """Submit one operation of a node; the future is done after the commit.

        `is_gone` returns True once the caller has disconnected; only waits call it, on the writer's thread.
        """
        future: asyncio.Future[LockAnswer] = self._loop.create_future()
        self.submit(node, request, partial(settle_future, future), lambda: future.done() or is_gone())
        return future

    def submit(self, node: str, request: LockRequest, on_answer: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Submit one operation as `ask` does; `on_answer` gets the answer, at once if it is refused here."""
        name, rights = _NAMES[type(request)], self._meshes.rights(node, request.mesh)
        refusal = self._refusal(node, request, rights)
        if not rights:  # it may release its locks, but learns nothing else
            shown = error("not_member", node=node, mesh=request.mesh)
            if refusal is not None and refusal.code == "key_not_approved":  # a former holder knows the mesh
                shown = refusal
            on_answer = partial(_conceal, shown, on_answer)
        if refusal is not None:
            self._observer.count("posthouse_relay_lock_operations_total", name, refusal.code)
            on_answer(refusal, None)
            return
        limit = None
        if type(request) is Acquire and request.wait_ms > 0:
            limit = self._queues.limit_reached(request)
            if limit is None:
                self._waiters.enter(node, request, partial(self._count_answer, name, on_answer), is_gone)
                return
        self._store.submit_with_callback(
            self._work(node, request),
            partial(self._decided, on_answer, is_gone, node, request, limit),
            is_short=is_short_request(request),
        )

    def watch(self, node: str, request: Inspect, on_state: Callable[[LockStatus | PosthouseError], None]) -> LockWatch:
        """Show a lock to a node now and after each change of its holders; raises an error if it may not see it."""
        refusal = self._refusal(node, request, self._meshes.rights(node, request.mesh))
        self._observer.count("posthouse_relay_lock_operations_total", "watch", refusal.code if refusal else "done")
        if refusal is not None:
            raise refusal
        watch = LockWatch(node, request.mesh, request.resource, on_state)
        self.watches.add(watch)
        return watch

    def end_watch(self, watch: LockWatch) -> None:
        """End a watch."""
        self.watches.remove(watch)

    async def list(self, node: str, request: ListLocks) -> LockList:
        """Return a page of the locks that a node may see; reading it is not ordered with other operations."""
        return await self._lists.page(node, request)

    def _view(self, mesh: str, resource: str, on_view: OnView) -> None:
        """Read a lock for its watchers, in the order of all operations."""
        request = Inspect(resource, mesh)

        def on_done(decision: Decision, failure: BaseException | None) -> None:
            if failure is None:
                assert isinstance(decision.outcome, LockView)
                on_view(decision.outcome, decision.waiting)
            else:
                on_view(error("internal", reason=type(failure).__name__), 0)

        self._store.submit_with_callback(lambda unit: self._decider.inspect(unit, request), on_done)

    def _work(self, node: str, request: LockRequest) -> Callable[[Unit], Decision]:
        return if_current(self._decision(node, request), self._meshes.changed_at)

    def _decision(self, node: str, request: LockRequest) -> Callable[[Unit], Decision]:
        decider = self._decider
        if isinstance(request, Acquire):
            return lambda unit: decider.acquire(unit, node, request)
        if isinstance(request, Renew):
            return lambda unit: decider.renew(unit, node, request)
        if isinstance(request, Release):
            former = self._meshes.former_keys(node) if self._meshes.retired else ()
            return lambda unit: decider.release(unit, node, request, former)
        if isinstance(request, Break):
            return lambda unit: decider.break_leases(unit, node, request)
        return lambda unit: decider.inspect(unit, request)

    def _decided(
        self,
        on_answer: OnLockAnswer,
        is_gone: Callable[[], bool],
        node: str,
        request: LockRequest,
        limit_reached: int | None,
        decision: Decision,
        failure: BaseException | None,
    ) -> None:
        if isinstance(failure, MeshesChanged):
            self.submit(node, request, on_answer, is_gone)
            return
        if failure is not None:
            on_answer(None, failure)
            return
        self._waiters.apply(request.mesh, decision)
        outcome = decision.outcome
        assert outcome is not None  # only a wait has none
        self._count_outcome(_NAMES[type(request)], outcome)
        if isinstance(outcome, LockView):
            on_answer(self._lists.state(node, request.mesh, outcome, decision.waiting), None)
        elif limit_reached is not None and isinstance(outcome, Denied) and outcome.code == "held":
            on_answer(error("wait_queue_full", limit=limit_reached), None)
        else:
            on_answer(lock_answer(outcome, request.resource), None)

    def _refusal(self, node: str, request: LockRequest, rights: Rights) -> PosthouseError | None:
        right = _RIGHTS.get(type(request))
        if right is not None and right not in rights:
            return right_error(self._meshes, node, request.mesh, right)
        wait_ns = self._buckets.take(node, self._clock.boot_ns())
        if not wait_ns:
            return None
        return error("locks_too_fast", node=node, rate=self._buckets.rate.per_s, retry_after_s=wait_ns / SECOND_NS)

    def _count_outcome(self, name: str, outcome: Outcome) -> None:
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


def settle_future(future: asyncio.Future[LockAnswer], answer: LockAnswer | None, failure: BaseException | None) -> None:
    """Give an answer to a future; one without an answer is cancelled."""
    if future.done():  # the caller has stopped waiting
        return
    if failure is not None:
        future.set_exception(failure)
    elif answer is None:
        future.cancel()
    else:
        future.set_result(answer)
