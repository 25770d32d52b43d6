"""The locks of a relay: acquire, renew, release, inspect, list; the same for HTTP and stream.

Checks rights and rate, hands the operation to the one writer, and answers after the commit. Answers are values,
refusals included; a failing store is an exception. Lists are read beside the writer. Decisions are in
posthouse.relay.locks.decide.
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
from posthouse.relay.locks.waiting_room import WaitingRoom
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


async def list_locks(store: RelayStore, meshes: Meshes, clock: Clock, node: str, wanted: ListLocks) -> LockPage:
    """Return the locks of one mesh, or of all that a node may read, in the order of mesh and resource."""
    if wanted.mesh is None:
        scope = meshes.readable(node)
    else:
        meshes.demand(node, wanted.mesh, Right.READ)
        scope = frozenset({wanted.mesh})
    after = ("", "") if wanted.cursor is None else _read_cursor(wanted.cursor)
    entries = await store.locks(scope, after, wanted.limit)
    now_ns = clock.boot_ns()
    last = entries[-1] if len(entries) == wanted.limit else None
    return LockPage([_listed(entry, now_ns) for entry in entries], None if last is None else _lock_cursor(last))


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
        self._buckets = RateBuckets(rate or Rate(LOCK_RATE_PER_S, LOCK_BURST))
        self._loop = asyncio.get_running_loop()
        self._observer: MetricsObserver = NullObserver()

    @property
    def waiters(self) -> int:
        """How many wait now."""
        return len(self._queues)

    def tell(self, observer: MetricsObserver) -> None:
        """Let the metrics hear what happens from now on."""
        self._observer = self._room.observer = observer

    def close(self) -> None:
        """Answer everybody who waits; what is with the writer is still committed and answered."""
        self._room.close()

    def ask(self, node: str, wanted: Wanted, is_gone: Callable[[], bool] = is_never_gone) -> asyncio.Future[LockAnswer]:
        """Do one operation for a node; the future is done after the commit.

        `is_gone` tells whether the caller is still there; only a wait asks it, and on the writer's thread.
        """
        future: asyncio.Future[LockAnswer] = self._loop.create_future()
        self.put(node, wanted, partial(_settle, future), lambda: future.done() or is_gone())
        return future

    def put(self, node: str, wanted: Wanted, told: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
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
        self._store.submit_with_callback(self._work(node, wanted), partial(self._decided, told, name, wanted, limit))

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
        told: OnLockAnswer,
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
        told(error("wait_queue_full", limit=full) if is_full else lock_answer(outcome, wanted.resource), None)

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

    def _count_answer(
        self, name: str, told: OnLockAnswer, answer: LockAnswer | None, failure: BaseException | None
    ) -> None:
        if answer is not None:
            code = answer.code if isinstance(answer, PosthouseError) else "done"
            self._observer.count("posthouse_relay_lock_operations_total", name, code)
        told(answer, failure)


def _settle(future: asyncio.Future[LockAnswer], answer: LockAnswer | None, failure: BaseException | None) -> None:
    if future.done():  # its caller does not wait any more
        return
    if failure is not None:
        future.set_exception(failure)
    elif answer is None:
        future.cancel()
    else:
        future.set_result(answer)
