"""The accept path: every published event comes through here, whichever way it came in.

    submitter -> verify (threads) -> authorize (loop) -> commit (writer thread, one transaction) -> answers -> listeners

Invariants: submissions of a connection reach the writer in order; no event is announced before its commit;
listeners get events in commit order. Events and bytes on the path are bounded; beyond that a submission is refused
before it costs anything. Refusals are counted per code, key and minute for the journal, within a bound, so that
nobody can fill the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import SECOND_NS
from posthouse.relay.accept.authorize import Authorizer
from posthouse.relay.accept.commit import CommittedGroup, Stage, commit_group
from posthouse.relay.accept.submission import (
    GROUP_EVENTS,
    GROUPS_AHEAD,
    CommitEffects,
    Job,
    OnAnswers,
    Submission,
    Submitter,
    take_group,
)
from posthouse.relay.accept.verify import VerifierPool
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.accept_results import Accepted, Answer, Committed, ConfirmationAccepted, Declined, Listener

MAX_ENTRIES = 512  # records a minute can write at most
OTHERS = "*"
UNKNOWN = "unknown"
_MINUTE_NS = 60 * SECOND_NS
RefusalKey = tuple[str, str, int]


class Refusals:
    """Counts refusals until they are written."""

    def __init__(self, clock: Clock, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._counts: dict[RefusalKey, int] = {}

    def note(self, code: str, key: str | None) -> None:
        """Count one refusal; `key` is the node it concerns, if one is known."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        entry = (code, key or UNKNOWN, minute)
        if entry not in self._counts and len(self._counts) >= self._max_entries:
            entry = (code, OTHERS, minute)
        self._counts[entry] = self._counts.get(entry, 0) + 1

    def __len__(self) -> int:
        return len(self._counts)

    async def write(self, store: RelayStore, *, everything: bool = False) -> int:
        """Write the minutes that are over, or all; return how many records."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        due = {entry: count for entry, count in self._counts.items() if everything or entry[2] != minute}
        if not due:
            return 0
        await store.submit(lambda unit: _append_refusals(unit, due))
        for entry, count in due.items():  # only now: a store without room keeps the counts for later
            self._counts[entry] -= count
            if not self._counts[entry]:
                del self._counts[entry]
        return len(due)


def _append_refusals(unit: Unit, due: dict[RefusalKey, int]) -> None:
    for (code, key, minute), count in due.items():
        unit.append("refused", actor=key, ref=code, body={"code": code, "key": key, "minute": minute, "count": count})


log = structlog.get_logger(__name__)
MAX_EVENTS = 32_768  # on the way at once
MAX_BYTES = 128 * 1024 * 1024


class AcceptPath:
    """Takes events from lanes to the store and tells everybody."""

    def __init__(
        self,
        store: RelayStore,
        judge: Authorizer,
        refusals: Refusals,
        threads: int,
        intake: Stage,
        on_mail: Callable[[CommitEffects], None],
    ) -> None:
        self._store = store
        self._judge = judge
        self._refusals = refusals
        self._intake = intake
        self._on_mail = on_mail
        self._checkers = VerifierPool(threads, self._checked)
        self._ready: list[Submission] = []
        self._groups_ahead = 0
        self._events = 0
        self._bytes = 0
        self._listeners: list[Listener] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        #: how many events were accepted, were there already, were passed on only, were refused
        self.counts = {"accepted": 0, "duplicate": 0, "ephemeral": 0, "refused": 0}

    def open_submitter(self, on_answers: OnAnswers) -> Submitter:
        """Return the way in of one connection."""
        return Submitter(self.enter, on_answers)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every group of events from now on; return what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def close(self) -> None:
        """Refuse what comes, answer what is on the way, and end the threads."""
        self._is_closed = True
        await self._idle.wait()
        self._checkers.close()

    def statistics(self) -> dict[str, int]:
        """Return what is on the way and what has gone through."""
        return self.counts | {"events_on_the_way": self._events, "bytes_on_the_way": self._bytes}

    def enter(self, parcel: Submission) -> None:
        """Take a parcel in; called by its lane."""
        if self._is_closed:
            raise error("relay_stopping")
        size = sum(len(job.raw) for job in parcel.jobs)
        if self._events and (self._events + len(parcel.jobs) > MAX_EVENTS or self._bytes + size > MAX_BYTES):
            raise error("store_busy", items=self._events, bytes=self._bytes)
        is_alone = not self._events and len(parcel.jobs) == 1
        self._events += len(parcel.jobs)
        self._bytes += size
        self._idle.clear()
        parcel.lane.parcels.append(parcel)
        if is_alone and self._checkers.check_alone(parcel.jobs[0]):
            self._checked(parcel.jobs)
        else:
            self._checkers.add(parcel.jobs)

    def _checked(self, jobs: Sequence[Job]) -> None:
        self._judge.begin()
        for job in jobs:
            parcel = job.parcel
            parcel.unchecked -= 1
            if not parcel.unchecked:
                self._advance(parcel.lane)
        self._write()

    def _advance(self, lane: Submitter) -> None:
        """Hand on the parcels at the head of a lane that are checked."""
        parcels = lane.parcels
        while parcels and not parcels[0].unchecked:
            parcel = parcels.popleft()
            for job in parcel.jobs:
                self._judge.judge(job)
            refusal = parcel.jobs[0].refusal
            if refusal is not None and parcel.jobs[0].row is None and not parcel.is_list:
                self._finish([parcel], [Declined(parcel.jobs[0].event_id, refusal)])  # nothing a store could know
            else:
                self._ready.append(parcel)

    def _write(self) -> None:
        """Hand groups to the writer, at most a few ahead: what gathers meanwhile shares a transaction."""
        while self._ready and self._groups_ahead < GROUPS_AHEAD:
            group, self._ready = take_group(self._ready, GROUP_EVENTS)
            self._submit(group)

    def _submit(self, group: list[Submission]) -> None:
        size = sum(len(job.raw) for parcel in group for job in parcel.jobs)
        try:
            self._store.submit_with_callback(
                lambda unit: commit_group(unit, group, self._intake), partial(self._committed, group), size=size
            )
        except PosthouseError as refusal:
            self._finish(group, _declined(group, refusal))
            return
        self._groups_ahead += 1

    def _committed(self, group: list[Submission], written: CommittedGroup, failure: BaseException | None) -> None:
        self._groups_ahead -= 1
        if failure is None:
            self._finish(group, written.answers)
            if written.mail:
                self._on_mail(written.mail)
        elif isinstance(failure, PosthouseError):
            self._finish(group, _declined(group, failure))
        elif len(group) > 1:  # one parcel trips over a defect: the others need not
            for parcel in group:
                self._submit([parcel])
        else:
            log.error("accept_failed", exc_info=failure)
            self._finish(group, _declined(group, error("internal", reason=type(failure).__name__)))
        self._write()

    def _finish(self, group: list[Submission], answers: list[Answer]) -> None:
        news: list[Committed] = []
        lanes: dict[Submitter, None] = {}
        jobs = [job for parcel in group for job in parcel.jobs]
        for job, answer in zip(jobs, answers, strict=True):
            lane = job.parcel.lane
            lane.note(job.event_id, answer)
            lanes[lane] = None
            self._bytes -= len(job.raw)
            if isinstance(answer, Accepted):
                self._note_accepted(job, answer, news)
            else:
                self._note_refused(job, answer)
        self._events -= len(jobs)
        if not self._events:
            self._idle.set()
        for lane in lanes:
            _notify(lane.flush)
        if news:
            for listener in tuple(self._listeners):
                _notify(partial(listener, news))

    def _note_accepted(self, job: Job, answer: Accepted, news: list[Committed]) -> None:
        row = job.row
        if answer.duplicate or row is None:
            self.counts["duplicate"] += 1
            self._judge.give_back(job)
            return
        if isinstance(answer, ConfirmationAccepted):  # one that has an effect is free
            self._judge.give_back(job)
        self.counts["ephemeral" if answer.seq is None else "accepted"] += 1
        news.append(Committed(answer.seq, row.event, row.raw, row.mesh, row.recipient))

    def _note_refused(self, job: Job, answer: Declined) -> None:
        self.counts["refused"] += 1
        self._refusals.note(answer.error.code, None if job.row is None else job.row.event.pubkey)
        if isinstance(answer.error, Transient):  # nothing is wrong with the event: its retry pays
            self._judge.give_back(job)


def _notify(call: Callable[[], None]) -> None:
    """Tell somebody; whoever fails at hearing it keeps neither the others nor the path from going on."""
    try:
        call()
    except Exception:
        log.exception("listener_failed")


def _declined(group: list[Submission], refusal: PosthouseError) -> list[Answer]:
    return [
        Declined(job.event_id, job.refusal if job.row is None and job.refusal is not None else refusal)
        for parcel in group
        for job in parcel.jobs
    ]
