"""Group commit: all writes of an event-loop iteration share one unit of work, and so one transaction.

    submit(urgent), defer(deferred) -> one group -> RelayStore -> on_committed or on_failed, per handler

Every kind of write has a handler: events, Pinch envelopes, deferred writes of reader sessions. An urgent job leaves
with the next flush; a deferred job joins the next urgent group, or leaves alone after 5 ms, so it never makes an
urgent job wait for a commit of its own. Invariants: the jobs of a handler are written in the order they came, and
deferred jobs before the urgent ones they leave with, so a confirmation finds its delivery marked as sent. At most
two groups are ahead of the writer; what comes meanwhile shares the next one. A job that trips over a defect fails
alone: the jobs of its group are written again, each in a unit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from posthouse.model.errors import Fatal, PosthouseError, Transient
from posthouse.relay.store.protocol import RelayStore, Unit

log = structlog.get_logger(__name__)
GROUP_EVENTS = 512  # keeps a transaction, and so the answers of all its callers, in the low milliseconds
GROUPS_AHEAD = 2  # one commits, one waits: the writer never idles, and jobs that come meanwhile share a group
DEFER_S = 0.005  # far below any timeout of a reader, long enough to meet the confirmation of a fast one


class JobHandler(Protocol):
    """Writes the jobs of one kind, and finishes them on the event loop."""

    def write(self, unit: Unit, jobs: Sequence[Any]) -> Any:
        """Write jobs inside the transaction; may run more than once, so it changes nothing but the store."""
        ...

    def on_committed(self, jobs: Sequence[Any], result: Any) -> None:
        """Take what `write` returned, after its commit; groups come in commit order."""
        ...

    def on_failed(self, jobs: Sequence[Any], failure: BaseException) -> None:
        """Take why nothing of these jobs was written."""
        ...


class _Waiting(NamedTuple):
    handler: JobHandler
    job: Any
    events: int
    size: int


class _Part(NamedTuple):
    """The jobs of one handler in a group."""

    handler: JobHandler
    jobs: list[Any]


class GroupCommitter:
    """Jobs that wait for their group, and the groups ahead of the writer."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._urgent: list[_Waiting] = []
        self._deferred: list[_Waiting] = []
        self._is_flush_scheduled = False
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._groups_ahead = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, handler: JobHandler, job: Any, *, events: int = 1, size: int = 0) -> None:
        """Add an urgent job; it leaves with the next `flush`."""
        self._urgent.append(_Waiting(handler, job, events, size))
        self._idle.clear()

    def flush(self) -> None:
        """Hand waiting groups to the writer, at most two ahead."""
        while self._urgent and self._groups_ahead < GROUPS_AHEAD:
            group, self._urgent = _take_group(self._urgent)
            self._hand_over(_parts([*self._take_deferred(), *group]), sum([each.size for each in group]))

    def flush_soon(self) -> None:
        """Flush once everything that this iteration of the event loop brings is there."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def defer(self, handler: JobHandler, job: Any) -> None:
        """Add a deferred job: it joins the next urgent group, or leaves after 5 ms."""
        self._deferred.append(_Waiting(handler, job, 0, 0))
        self._idle.clear()
        if self._deferred_timer is None:
            self._deferred_timer = self._loop.call_later(DEFER_S, self.flush_deferred)

    def flush_deferred(self) -> None:
        """Hand deferred jobs to the writer now: a caller waits for them, or their time is over."""
        if deferred := self._take_deferred():
            self._hand_over(_parts(deferred), 0)

    async def drain(self) -> None:
        """Wait until every job is committed or has failed; before the store closes."""
        while not self._idle.is_set():
            self.flush()
            self.flush_deferred()
            await self._idle.wait()

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _take_deferred(self) -> list[_Waiting]:
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
            self._deferred_timer = None
        deferred, self._deferred = self._deferred, []
        return deferred

    def _hand_over(self, parts: list[_Part], size: int) -> None:
        self._groups_ahead += 1
        try:
            self._store.submit_with_callback(
                lambda unit: [handler.write(unit, jobs) for handler, jobs in parts],
                partial(self._finish, parts),
                size=size,
            )
        except PosthouseError as refusal:
            self._groups_ahead -= 1
            self._fail(parts, refusal)
            self._note_idle()

    def _finish(self, parts: list[_Part], results: list[Any] | None, failure: BaseException | None) -> None:
        self._groups_ahead -= 1
        if failure is not None:
            self._fail(parts, failure)
        else:
            for (handler, jobs), result in zip(parts, results or (), strict=True):
                try:
                    handler.on_committed(jobs, result)
                except Exception:  # a defect in one handler must not keep the others from their results
                    log.exception("commit_callback_failed")
        self.flush()
        self._note_idle()

    def _fail(self, parts: list[_Part], failure: BaseException) -> None:
        jobs = [(handler, job) for handler, jobs in parts for job in jobs]
        if len(jobs) > 1 and not _concerns_all(failure):
            for handler, job in jobs:
                self._hand_over([_Part(handler, [job])], 0)
            return
        for handler, failed in parts:
            handler.on_failed(failed, failure)

    def _note_idle(self) -> None:
        if not (self._groups_ahead or self._urgent or self._deferred):
            self._idle.set()


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
    by_handler: dict[JobHandler, list[Any]] = {}
    for each in group:
        by_handler.setdefault(each.handler, []).append(each.job)
    return [_Part(handler, jobs) for handler, jobs in by_handler.items()]
