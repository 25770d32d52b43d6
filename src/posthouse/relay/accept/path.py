"""The accept path: every published event takes it, no matter which wire it arrived on.

    submit -> verify -> authorize -> commit (group_commit: one transaction) -> answers -> listeners -> reader sessions

Invariants: submissions of a connection reach the writer in order; no event is announced before its commit;
listeners get events in commit order. Events and bytes on the path are bounded; beyond the bound a submission is
refused before it costs anything. Refusals are counted per code, key and minute for the journal, within a bound, so
that refused senders cannot fill the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.limits import SECOND_NS
from posthouse.relay.accept.authorize import Authorizer
from posthouse.relay.accept.commit import CommittedGroup, KindHandlers, commit_group
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.accept.submission import Answered, CommitEffects, Job, OnAnswers, Submission, Submitter
from posthouse.relay.accept.verify import open_verifier
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import Leadership, MeshesChanged
from posthouse.relay.wire.accept_results import Accepted, Answer, Committed, ConfirmationAccepted, Declined, Listener
from posthouse.tracing import TRACEPARENT, Role, Tracer

log = structlog.get_logger(__name__)
T = TypeVar("T")
MAX_EVENTS = 32_768  # on the path at once
MAX_BYTES = 128 * 1024 * 1024


class OtherRelays(Leadership, Protocol):
    """The other relays of the store. One of them may lead; the leader decides about fenced events."""

    def forward(self, submission: Submission, on_answers: Callable[[Sequence[Answer]], None]) -> None:
        """Let the leader decide about the events of a submission."""
        ...

    def pass_on(self, committed: Sequence[Committed]) -> None:
        """Send the other relays what they cannot read from the store: ephemeral events."""
        ...


class AcceptPath:
    """Carries events from submitters to the store, and the answers back."""

    def __init__(
        self,
        committer: GroupCommitter,
        authorizer: Authorizer,
        refusals: Refusals,
        verifier_threads: int,
        kind_handlers: KindHandlers,
        on_effects: Callable[[CommitEffects], None],
    ) -> None:
        self._committer = committer
        self._authorizer = authorizer
        self._refusals = refusals
        self._kind_handlers = kind_handlers
        self._on_effects = on_effects
        self._verifier = open_verifier(verifier_threads, self._on_verified)
        self._events = 0
        self._bytes = 0
        self._listeners: list[Listener] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        #: None: this relay is alone
        self.other_relays: OtherRelays | None = None
        #: None: events are not traced
        self.tracer: Tracer | None = None
        #: how many events were stored, already known, or only passed on
        self.accepted = {"stored": 0, "duplicate": 0, "ephemeral": 0}
        #: code -> how many events were refused
        self.refused: dict[str, int] = {}

    def open_submitter(self, on_answers: OnAnswers, payer: str | None = None) -> Submitter:
        """Return the submitter of one connection; `payer` is charged for events of keys that may not write."""
        if self.other_relays is not None:  # another relay may just have granted the right: only a transaction can tell
            return Submitter(self.enter, on_answers, payer=payer)
        return Submitter(self.enter, on_answers, self._authorizer.early_error, payer)

    def open_mirror(self, on_answers: OnAnswers, mirrored_by: str, mesh: str) -> Submitter:
        """Return the submitter for events of one mesh that a node brings from another relay."""
        return Submitter(self.enter, on_answers, partial(_mesh_error, mesh), mirrored_by=mirrored_by)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every group of committed events from now on; return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def close(self) -> None:
        """Refuse new submissions, answer those on the path, and end the threads."""
        self._is_closed = True
        await self._idle.wait()
        self._verifier.close()

    def statistics(self) -> dict[str, int]:
        """Return how many events are on the path, and how many have been through it."""
        counts = self.accepted | {"refused": sum(self.refused.values())}
        return counts | {"events_on_the_way": self._events, "bytes_on_the_way": self._bytes}

    def enter(self, submission: Submission) -> None:
        """Verify a submission, or raise store_busy; its submitter calls this."""
        jobs = submission.jobs
        try:
            if self._is_closed:
                raise error("relay_stopping")
            if self._events and (self._events + len(jobs) > MAX_EVENTS or self._bytes + submission.size > MAX_BYTES):
                raise error("store_busy", items=self._events, bytes=self._bytes)
            if submission.submitter.payer in self._authorizer.strangers.charged:
                self._authorizer.strangers.check(submission.submitter.payer)
        except PosthouseError as refusal:
            self.refused[refusal.code] = self.refused.get(refusal.code, 0) + len(jobs)
            raise
        if self.tracer is not None:
            submission.entered_ns = self.tracer.now_ns()
        is_alone = not self._events
        self._events += len(jobs)
        self._bytes += submission.size
        self._idle.clear()
        submission.submitter.waiting.append(submission)
        verified = self._verifier.verify_now(jobs) if is_alone else 0
        if verified:
            self._on_verified(jobs[:verified])
        if verified < len(jobs):
            self._verifier.add(jobs[verified:])

    def _on_verified(self, jobs: Sequence[Job]) -> None:
        """Authorize the submissions that are complete now, in the order of their connections, and commit them."""
        ready: list[Submission] = []
        for job in jobs:
            submission = job.submission
            submission.unverified -= 1
            if not submission.unverified:
                ready += self._take_ready(submission.submitter)
        self._accept(ready)

    def _take_ready(self, submitter: Submitter) -> list[Submission]:
        """Take the submissions of a connection that are verified, in order, up to one that the leader decides about."""
        ready: list[Submission] = []
        while submitter.waiting and not submitter.waiting[0].unverified and not submitter.is_forwarding:
            submission = submitter.waiting.pop(0)
            if self.other_relays is not None and submission.is_fenced and not self.other_relays.is_leader:
                submitter.is_forwarding = True
                self.other_relays.forward(submission, partial(self._take_forwarded, submission))
            else:
                ready.append(submission)
        return ready

    def _take_forwarded(self, submission: Submission, answers: Sequence[Answer]) -> None:
        """Pass on the answers of the leader, and continue with the later submissions of the connection."""
        submitter = submission.submitter
        self._finish([submission], answers, is_committed_here=False)
        submitter.is_forwarding = False
        self._accept(self._take_ready(submitter))

    def _accept(self, ready: Sequence[Submission]) -> None:
        """Authorize verified submissions and commit them."""
        self._authorizer.authorize([job for submission in ready for job in submission.jobs])
        for submission in ready:
            submission.authorized_at = self._authorizer.meshes.changed_at
            first = submission.jobs[0]
            if first.row is None and first.refusal is not None and not submission.is_list:
                self._finish([submission], [Declined(first.event_id, first.refusal)])  # the store cannot look it up
            else:
                self._committer.submit(self, submission, events=len(submission.jobs), size=submission.size)
        self._committer.flush()

    def write(self, unit: Unit, submissions: Sequence[Submission]) -> CommittedGroup:
        """Write a group inside the transaction; called by the committer."""
        if self.other_relays is not None and any(submission.is_fenced for submission in submissions):
            self.other_relays.check_term()
        if unit.meshes_changed_at > min([submission.authorized_at for submission in submissions]):
            raise MeshesChanged
        meshes = self._authorizer.meshes
        if meshes.retiring:
            self._authorizer.refuse_retired([job for submission in submissions for job in submission.jobs])
        return commit_group(unit, submissions, self._kind_handlers, meshes.limited)

    def on_committed(self, submissions: Sequence[Submission], result: CommittedGroup) -> None:
        """Answer a group, then apply its effects to reader sessions; called by the committer."""
        self._finish(submissions, result.answers)
        self._on_effects(result.effects)

    def on_failed(self, submissions: Sequence[Submission], failure: BaseException) -> None:
        """Refuse a group that was not written, or authorize it again; called by the committer."""
        if isinstance(failure, MeshesChanged):
            self._submit_again(submissions)
            return
        if not isinstance(failure, PosthouseError):
            log.error("accept_failed", exc_info=failure)
            failure = error("internal", reason=type(failure).__name__)
        self._finish(submissions, _declined(submissions, failure))

    def _submit_again(self, submissions: Sequence[Submission]) -> None:
        """Authorize and submit a group again: by now memory reflects the change that another relay made before it."""
        self._authorizer.authorize_again([job for submission in submissions for job in submission.jobs])
        for submission in submissions:
            submission.authorized_at = self._authorizer.meshes.changed_at
            self._committer.submit(self, submission, events=len(submission.jobs), size=submission.size)
        self._committer.flush()

    def announce(self, committed: Sequence[Committed]) -> None:
        """Call the listeners with events that were committed, here or by another relay."""
        for listener in tuple(self._listeners):
            _guard(listener, committed)

    def _finish(
        self, submissions: Sequence[Submission], answers: Sequence[Answer], *, is_committed_here: bool = True
    ) -> None:
        committed: list[Committed] = []
        answered: dict[Submitter, list[Answered]] = {}
        jobs = [job for submission in submissions for job in submission.jobs]
        for job, answer in zip(jobs, answers, strict=True):
            answered.setdefault(job.submission.submitter, []).append(Answered(job.event_id, answer))
            if isinstance(answer, Accepted):
                self._note_accepted(job, answer, committed)
            else:
                self._note_refused(job, answer)
        if self.tracer is not None:
            _trace_accepted(self.tracer, jobs, answers)
        self._bytes -= sum([submission.size for submission in submissions])
        self._events -= len(jobs)
        if not self._events:
            self._idle.set()
        for submitter, given in answered.items():
            submitter.in_flight -= len(given)
            if submitter.on_answers is not None:
                _guard(submitter.on_answers, given)
        if committed and is_committed_here:  # else they come with the commits of the other relay
            self.announce(committed)
            if self.other_relays is not None:
                self.other_relays.pass_on(committed)

    def _note_accepted(self, job: Job, answer: Accepted, committed: list[Committed]) -> None:
        row = job.row
        if answer.duplicate or row is None:
            self.accepted["duplicate"] += 1
            self._authorizer.give_back(job)
            return
        if isinstance(answer, ConfirmationAccepted):  # a confirmation with an effect is free
            self._authorizer.give_back(job)
        self.accepted["ephemeral" if answer.seq is None else "stored"] += 1
        committed.append(Committed(answer.seq, row.event, row.raw, row.mesh, row.recipient))

    def _note_refused(self, job: Job, answer: Declined) -> None:
        code = answer.error.code
        self.refused[code] = self.refused.get(code, 0) + 1
        self._refusals.note(code, None if job.row is None else job.row.event.pubkey)
        if isinstance(answer.error, Transient):  # nothing is wrong with the event: its retry pays
            self._authorizer.give_back(job)


def _trace_accepted(tracer: Tracer, jobs: Sequence[Job], answers: Sequence[Answer]) -> None:
    """Record how long the relay took to accept, or to refuse, each event that its sender traces."""
    for job, answer in zip(jobs, answers, strict=True):
        parent = None if job.row is None else job.row.event.value(TRACEPARENT)
        if job.row is not None and parent is not None:
            attributes: dict[str, str | int] = {"posthouse.mesh": job.row.mesh, "posthouse.kind": job.row.event.kind}
            attributes["messaging.message.id"] = job.row.event.id
            if isinstance(answer, Accepted) and answer.seq is not None:
                attributes["posthouse.seq"] = answer.seq
            failure = answer.error if isinstance(answer, Declined) else None
            tracer.record("accept", Role.SERVER, parent, job.submission.entered_ns, attributes, failure)


def _guard(listener: Callable[[Sequence[T]], None], values: Sequence[T]) -> None:
    """Call a listener; a defect in one must not stop the others, nor the path."""
    try:
        listener(values)
    except Exception:
        log.exception("listener_failed")


def _mesh_error(mirrored: str, _event: Event, mesh: str) -> PosthouseError | None:
    """Return the refusal of an event outside the mesh that its mirror may write."""
    return None if mesh == mirrored else error("mirror_refused", reason=f"it belongs to the mesh {mesh}")


def _declined(submissions: Sequence[Submission], refusal: PosthouseError) -> list[Answer]:
    return [
        Declined(job.event_id, job.refusal if job.row is None and job.refusal is not None else refusal)
        for submission in submissions
        for job in submission.jobs
    ]


MAX_ENTRIES = 512  # records that one minute can write at most
OTHERS = "*"
UNKNOWN = "unknown"
_MINUTE_NS = 60 * SECOND_NS
#: code, node, minute
RefusalKey = tuple[str, str, int]


class Refusals:
    """Counts of refusals that are not written yet."""

    def __init__(self, clock: Clock, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._counts: dict[RefusalKey, int] = {}

    def note(self, code: str, key: str | None) -> None:
        """Count one refusal; `key` is the node that sent the event, if it is known."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        entry = (code, key or UNKNOWN, minute)
        if entry not in self._counts and len(self._counts) >= self._max_entries:
            entry = (code, OTHERS, minute)
        self._counts[entry] = self._counts.get(entry, 0) + 1

    def __len__(self) -> int:
        return len(self._counts)

    async def write(self, store: RelayStore, *, everything: bool = False) -> int:
        """Write the counts of past minutes, or all counts; return how many records were written."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        due = {entry: count for entry, count in self._counts.items() if everything or entry[2] != minute}
        if not due:
            return 0
        await store.submit(lambda unit: _append_refusals(unit, due))
        for entry, count in due.items():  # after the commit: a store without room keeps the counts for later
            self._counts[entry] -= count
            if not self._counts[entry]:
                del self._counts[entry]
        return len(due)


def _append_refusals(unit: Unit, due: dict[RefusalKey, int]) -> None:
    for (code, key, minute), count in due.items():
        unit.append("refused", actor=key, ref=code, body={"code": code, "key": key, "minute": minute, "count": count})
