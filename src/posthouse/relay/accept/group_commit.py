"""Group commit: all writes of an event-loop iteration share one unit of work, and so one transaction.

    submit(urgent), defer(deferred) -> one group -> RelayStore -> on_committed or on_failed, per handler

Every kind of write has a handler: events, Pinch envelopes, deferred writes of reader sessions. An urgent job leaves
with the next flush; a deferred job joins the next urgent group, or leaves alone after 5 ms, so it never makes an urgent
job wait for an extra commit. Invariants: the jobs of a handler are written in the order in which they arrived, and
deferred jobs before the urgent ones of the same group, so a confirmation finds its delivery marked as sent. At most two
urgent groups are ahead of the writer; jobs that arrive meanwhile share the next one. Deferred groups do not count
towards the two, and their timer waits while one of them is ahead, so on a slow disk they never block urgent jobs. A job
that hits a defect fails alone: the other jobs of its group are written again, each in its own unit of work. If the
store has no room for a group, or a handler has to decide again, the jobs of each handler are written again separately.

`DeferredWrites` handles the writes of reader sessions that no caller waits for: sent, read, attempt counted. Only
the next session of the same node waits for them. A store without room makes them wait for a retry, within a bound; a
lost write costs a reader at most a count of attempts, and its sender learns that the message waited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient
from posthouse.model.limits import SECOND_NS
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import MeshesChanged, SharedStore

log = structlog.get_logger(__name__)
GROUP_EVENTS = 512  # keeps a transaction, and so the answers of all its callers, in the low milliseconds
GROUPS_AHEAD = 2  # one commits, one waits: the writer never idles, and jobs that arrive meanwhile share a group
DEFER_S = 0.005  # far below any timeout of a reader, long enough to meet the confirmation of a fast one
_MAX_REFUSED = 10_000  # deferred writes that wait for a store without room
#: mesh and node
Name = tuple[str, str]


class JobHandler(Protocol):
    """Writes the jobs of one kind, and finishes them on the event loop."""

    def write(self, unit: Unit, jobs: Sequence[Any]) -> Any:
        """Write jobs inside the transaction; may run more than once, so it changes only the store."""
        ...

    def on_committed(self, jobs: Sequence[Any], result: Any) -> None:
        """Handle the result of `write` after its commit; called in commit order."""
        ...

    def on_failed(self, jobs: Sequence[Any], failure: BaseException) -> None:
        """Handle the failure of these jobs; none of them was written."""
        ...


class _Waiting(NamedTuple):
    handler: JobHandler
    job: Any
    events: int
    size: int


class _Part(NamedTuple):
    """The jobs of one handler in a group, their sizes and how many events each of them has."""

    handler: JobHandler
    jobs: list[Any]
    sizes: list[int]
    #: of each job
    events: list[int]


class GroupCommitter:
    """Jobs that wait for their group, and the groups ahead of the writer."""

    def __init__(self, store: RelayStore, clock: Clock) -> None:
        self._store = store
        self._commits = store.loop_results()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._urgent: list[_Waiting] = []
        self._deferred: list[_Waiting] = []
        self._is_flush_scheduled = False
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._is_deferred_due = False
        self._urgent_ahead = 0
        self._deferred_ahead = 0
        self._idle = asyncio.Event()
        self._idle.set()
        #: measures how long commits take
        self.observer: MetricsObserver = NullObserver()

    def submit(self, handler: JobHandler, job: Any, *, events: int = 1, size: int = 0) -> None:
        """Add an urgent job; it leaves with the next `flush`."""
        self._urgent.append(_Waiting(handler, job, events, size))
        self._idle.clear()

    def flush(self) -> None:
        """Hand waiting groups to the writer, at most two ahead."""
        while self._urgent and self._urgent_ahead < GROUPS_AHEAD:
            group, self._urgent = _take_group(self._urgent)
            self._hand_over(_parts([*self._take_deferred(), *group]), is_urgent=True)

    def flush_soon(self) -> None:
        """Flush after everything that this iteration of the event loop submits."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def defer(self, handler: JobHandler, job: Any) -> None:
        """Add a deferred job: it joins the next urgent group, or leaves after 5 ms."""
        self._deferred.append(_Waiting(handler, job, 0, 0))
        self._idle.clear()
        if self._deferred_timer is None:
            self._deferred_timer = self._loop.call_later(DEFER_S, self._flush_due)

    def flush_deferred(self) -> None:
        """Hand deferred jobs to the writer now, because a caller waits for them."""
        if deferred := self._take_deferred():
            self._hand_over(_parts(deferred), is_urgent=False)

    async def drain(self) -> None:
        """Wait until every job is committed or has failed; before the store closes."""
        while not self._idle.is_set():
            self.flush()
            self.flush_deferred()
            await self._idle.wait()

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _flush_due(self) -> None:
        """Flush deferred jobs that have waited long enough, unless a deferred group is ahead: then they follow it."""
        self._is_deferred_due = self._deferred_ahead > 0
        if not self._is_deferred_due:
            self.flush_deferred()

    def _take_deferred(self) -> list[_Waiting]:
        self._is_deferred_due = False
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
            self._deferred_timer = None
        deferred, self._deferred = self._deferred, []
        return deferred

    def _hand_over(self, parts: list[_Part], *, is_urgent: bool) -> None:
        self._count_ahead(1, is_urgent)
        try:
            self._store.submit_with_callback(
                lambda unit: [part.handler.write(unit, part.jobs) for part in parts],
                partial(self._finish, parts, is_urgent, self._clock.boot_ns()),
                size=sum([sum(part.sizes) for part in parts]),
                is_short=is_urgent and len(parts) == 1 and parts[0].events == [1],
            )
        except PosthouseError as refusal:
            self._count_ahead(-1, is_urgent)
            self._fail(parts, is_urgent, refusal)
            self._note_idle()

    def _count_ahead(self, change: int, is_urgent: bool) -> None:
        if is_urgent:
            self._urgent_ahead += change
        else:
            self._deferred_ahead += change

    def _finish(
        self,
        parts: list[_Part],
        is_urgent: bool,
        started_ns: int,
        results: list[Any] | None,
        failure: BaseException | None,
    ) -> None:
        self._count_ahead(-1, is_urgent)
        if failure is not None:
            self._fail(parts, is_urgent, failure)
        else:
            for part, result in zip(parts, results or (), strict=True):
                try:
                    part.handler.on_committed(part.jobs, result)
                except Exception:  # a defect in one handler must not keep the others from their results
                    log.exception("commit_callback_failed")
        committed_ns, finished_ns = self._commits.committed_ns, self._clock.boot_ns()
        self.flush()
        if self._is_deferred_due:
            self._flush_due()
        self._note_idle()
        self.observer.observe("posthouse_relay_commit_seconds", (committed_ns - started_ns) / SECOND_NS)
        if is_urgent and failure is None:  # its events are written to all subscribers
            self.observer.observe("posthouse_relay_event_lag_seconds", (finished_ns - committed_ns) / SECOND_NS)

    def _fail(self, parts: list[_Part], is_urgent: bool, failure: BaseException) -> None:
        retried = _to_retry(parts, failure)
        for part in retried:
            self._hand_over([part], is_urgent=is_urgent)
        if not retried:
            for part in parts:
                _guard(partial(part.handler.on_failed, part.jobs, failure))

    def _note_idle(self) -> None:
        if not (self._urgent_ahead or self._deferred_ahead or self._urgent or self._deferred):
            self._idle.set()


def _guard(callback: Callable[[], None]) -> None:
    """Call back; a defect in one handler must not keep the others from their results."""
    try:
        callback()
    except Exception:
        log.exception("commit_callback_failed")


def _to_retry(parts: list[_Part], failure: BaseException) -> list[_Part]:
    """Return the parts of a failed group that are worth writing separately; none if all of it has failed."""
    is_full = isinstance(failure, PosthouseError) and failure.code == "store_full"
    if is_full or isinstance(failure, MeshesChanged):
        return parts if len(parts) > 1 else []
    if _concerns_all(failure) or sum([len(part.jobs) for part in parts]) == 1:
        return []
    return [
        _Part(part.handler, [job], [size], [events])
        for part in parts
        for job, size, events in zip(part.jobs, part.sizes, part.events, strict=True)
    ]


def _concerns_all(failure: BaseException) -> bool:
    """Return True if the store failed or is closed, so that no job of the group could be written alone."""
    if isinstance(failure, Transient | Fatal):
        return True
    return isinstance(failure, PosthouseError) and failure.code == "store_closed"


def _take_group(waiting: list[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """Return the first jobs with at most GROUP_EVENTS events, but at least one job, and the rest."""
    count = 0
    for index, each in enumerate(waiting):
        count += each.events
        if count > GROUP_EVENTS and index:
            return waiting[:index], waiting[index:]
    return waiting, []


def _parts(group: Sequence[_Waiting]) -> list[_Part]:
    by_handler: dict[JobHandler, _Part] = {}
    for each in group:
        part = by_handler.get(each.handler)
        if part is None:
            part = by_handler[each.handler] = _Part(each.handler, [], [], [])
        part.jobs.append(each.job)
        part.sizes.append(each.size)
        part.events.append(each.events)
    return list(by_handler.values())


class _DeferredWrite(NamedTuple):
    name: Name
    #: of the session that it belongs to; 0: of no session
    number: int
    work: Callable[[Unit], Any]
    on_done: Callable[[Any], None] | None


_DROPPED: Any = object()  # stands for the result of a write that was not made


class DeferredWrites:
    """Writes of reader sessions that no caller waits for, in order.

    If several relays share the store, each write carries the number of its session: writes of a session are dropped
    once a newer one has begun elsewhere.
    """

    def __init__(self, committer: GroupCommitter, shared: SharedStore | None) -> None:
        self._committer = committer
        self._shared = shared
        #: number of the newest session of each name here, if the store is shared
        self.numbers: dict[Name, int] = {}
        #: how many writes of a name are not committed
        self._pending: dict[Name, int] = {}
        self._waiters: dict[Name, list[asyncio.Future[None]]] = {}
        self._refused: deque[_DeferredWrite] = deque(maxlen=_MAX_REFUSED)

    def defer(self, name: Name, work: Callable[[Unit], Any], on_done: Callable[[Any], None] | None = None) -> None:
        """Write in the background; `on_done` is called with the result after the commit."""
        self._defer(_DeferredWrite(name, self.numbers.get(name, 0), work, on_done))

    def _defer(self, write: _DeferredWrite) -> None:
        self._pending[write.name] = self._pending.get(write.name, 0) + 1
        self._committer.defer(self, write)

    async def settled(self, name: Name) -> None:
        """Wait until the writes of a name are committed or refused."""
        while name in self._pending:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(name, []).append(waiter)  # before the flush, which a closed store refuses at once
            self._committer.flush_deferred()
            await waiter

    def retry(self) -> None:
        """Defer the writes again that a store without room refused."""
        refused = list(self._refused)
        self._refused.clear()
        for each in refused:
            self._defer(each)

    def write(self, unit: Unit, jobs: Sequence[_DeferredWrite]) -> list[Any]:
        """Write inside the transaction, except for sessions that a newer one replaced; called by the committer."""
        if self._shared is None or not any(each.number for each in jobs):
            return [each.work(unit) for each in jobs]
        numbers = self._shared.session_numbers(list({each.name for each in jobs}))
        return [
            each.work(unit) if not each.number or numbers.get(each.name) == each.number else _DROPPED for each in jobs
        ]

    def on_committed(self, jobs: Sequence[_DeferredWrite], result: list[Any]) -> None:
        """Notify sessions; called by the committer."""
        self._finish(jobs)
        for each, value in zip(jobs, result, strict=True):
            if each.on_done is not None and value is not _DROPPED:
                each.on_done(value)

    def on_failed(self, jobs: Sequence[_DeferredWrite], failure: BaseException) -> None:
        """Keep writes for a retry, or give up; called by the committer."""
        if isinstance(failure, Transient):
            self._refused.extend(jobs)
        elif isinstance(failure, PosthouseError):  # the store is closed or has failed
            log.warning("deliveries_not_noted", reason=str(failure))
        else:
            log.error("deliveries_not_noted", reason=repr(failure), exc_info=failure)
        self._finish(jobs)

    def _finish(self, jobs: Sequence[_DeferredWrite]) -> None:
        for each in jobs:
            self._pending[each.name] -= 1
            if not self._pending[each.name]:
                del self._pending[each.name]
                for waiter in self._waiters.pop(each.name, ()):
                    if not waiter.done():  # the session may be gone
                        waiter.set_result(None)
