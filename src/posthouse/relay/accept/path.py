"""The accept path: every event that is published comes along here, whichever way it came in.

    lane -> checkers (threads) -> judge (loop) -> writer (its thread, one transaction) -> answers -> listeners

An event that is alone on the whole path may be checked without a change of thread, see checkers.

Invariants: parcels of a lane reach the writer in the order they were submitted; nobody hears of an event before its
commit; listeners hear of events in commit order. What is on the way is bounded by events and bytes; beyond
that a submission is refused before it costs anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.relay.accept.checkers import Checkers
from posthouse.relay.accept.group import GROUP_EVENTS, GROUPS_AHEAD, take_group
from posthouse.relay.accept.job import Job, Parcel
from posthouse.relay.accept.judge import Judge
from posthouse.relay.accept.lane import Lane, OnAnswers
from posthouse.relay.accept.write import Written, write_group
from posthouse.relay.answers import Accepted, Answer, Declined
from posthouse.relay.committed import Committed, Listener
from posthouse.relay.deliver.answers import ConfirmationAccepted
from posthouse.relay.deliver.intake import Intake
from posthouse.relay.deliver.mail import Mail
from posthouse.relay.ops.refusals import Refusals
from posthouse.relay.store.interface import RelayStore

log = structlog.get_logger(__name__)

MAX_EVENTS = 32_768  # on the way at once
MAX_BYTES = 128 * 1024 * 1024


class AcceptPath:
    """Takes events from lanes to the store and tells everybody."""

    def __init__(
        self,
        store: RelayStore,
        judge: Judge,
        refusals: Refusals,
        threads: int,
        intake: Intake,
        on_mail: Callable[[Mail], None],
    ) -> None:
        self._store = store
        self._judge = judge
        self._refusals = refusals
        self._intake = intake
        self._on_mail = on_mail
        self._checkers = Checkers(threads, self._checked)
        self._ready: list[Parcel] = []
        self._groups_ahead = 0
        self._events = 0
        self._bytes = 0
        self._listeners: list[Listener] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        #: how many events were accepted, were there already, were passed on only, were refused
        self.counts = {"accepted": 0, "duplicate": 0, "ephemeral": 0, "refused": 0}

    def open_lane(self, on_answers: OnAnswers) -> Lane:
        """Return the way in of one connection."""
        return Lane(self, on_answers)

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

    def enter(self, parcel: Parcel) -> None:
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

    def _advance(self, lane: Lane) -> None:
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

    def _submit(self, group: list[Parcel]) -> None:
        size = sum(len(job.raw) for parcel in group for job in parcel.jobs)
        try:
            self._store.hand_in(
                lambda unit: write_group(unit, group, self._intake), partial(self._committed, group), size=size
            )
        except PosthouseError as refusal:
            self._finish(group, _declined(group, refusal))
            return
        self._groups_ahead += 1

    def _committed(self, group: list[Parcel], written: Written, failure: BaseException | None) -> None:
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

    def _finish(self, group: list[Parcel], answers: list[Answer]) -> None:
        news: list[Committed] = []
        lanes: dict[Lane, None] = {}
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
            _tell(lane.flush)
        if news:
            for listener in tuple(self._listeners):
                _tell(partial(listener, news))

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


def _tell(call: Callable[[], None]) -> None:
    """Tell somebody; whoever fails at hearing it keeps neither the others nor the path from going on."""
    try:
        call()
    except Exception:
        log.exception("listener_failed")


def _declined(group: list[Parcel], refusal: PosthouseError) -> list[Answer]:
    return [
        Declined(job.event_id, job.refusal if job.row is None and job.refusal is not None else refusal)
        for parcel in group
        for job in parcel.jobs
    ]
