"""Accept Pinch envelopes and confirms: one unit of work per event-loop iteration, with the queues of every message.

Submissions are written in the order they came; readers get them in commit order, because results are taken where
the writer's answers arrive. They belong to the relay, not to the connection that brought them. A confirm counts for
an open or parked delivery of its reader from the sender it names; its signature was verified before and is kept for
the audit.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from posthouse.model.errors import PosthouseError
from posthouse.model.node import PINCH_MESH
from posthouse.model.pinch import delivery_id, is_confirmed_by_reader
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.audience import GroupQueue, GroupQueues
from posthouse.relay.messages.reader_session import Offer
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.pinch.envelopes import forwarded_confirm
from posthouse.relay.pinch.schema.pinch_pb2 import Envelope
from posthouse.relay.store.delivery_protocol import NewEnvelope
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import (
    OPEN,
    PARKED,
    ClosedDeliveries,
    DeliveryRow,
    NewDelivery,
    StoredConfirm,
    encode_stored_confirm,
)
from posthouse.relay.wire.frames import binary_frame


class Outcome(enum.StrEnum):
    """What became of an envelope or a confirm."""

    ACCEPTED = "accepted"
    #: it was accepted before
    DUPLICATE = "duplicate"
    QUEUE_FULL = "queue_full"
    #: a confirm of nothing that could be confirmed
    IGNORED = "ignored"
    #: the store takes nothing now
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Posting:
    """An envelope for another agent; whoever asks is told the outcome after the commit."""

    sender: str
    recipient: str
    message_id: bytes
    message_type: int
    #: as it came
    raw: bytes
    tell: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, slots=True)
class Confirming:
    """A confirm whose signature was verified."""

    reader: str
    sender: str
    envelope: Envelope
    tell: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return 512


PinchSubmission = Posting | Confirming


class _Plan(NamedTuple):
    posting: Posting
    is_blocked: bool


class GroupPostings:
    """The envelopes of one unit of work."""

    def __init__(
        self, unit: Unit, settings: DeliverySettings, postings: Sequence[Posting], effects: CommitEffects
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._queues = GroupQueues(unit, settings, effects)
        self._queues.load([(PINCH_MESH, each) for posting in postings for each in (posting.sender, posting.recipient)])
        self._fresh: set[tuple[str, bytes]] = set()
        self._blockers: dict[str, frozenset[str]] = {}
        self._plans: list[_Plan] = []
        #: what goes to readers at the tail, by address
        self.offers: dict[str, list[Offer]] = {}

    def claim(self, posting: Posting) -> Outcome:
        """Take the room of an envelope, or say why there is none."""
        if self._is_known(posting):
            return Outcome.DUPLICATE
        queue = self._queue(posting.recipient)
        if not self._queues.has_room(queue):
            return Outcome.QUEUE_FULL
        is_blocked = posting.recipient in self._blockers_of(posting.sender)
        if not is_blocked:
            queue.added += 1
        self._plans.append(_Plan(posting, is_blocked))
        self._fresh.add((posting.sender, posting.message_id))
        return Outcome.ACCEPTED

    def write(self) -> None:
        """Write everything that was claimed, in order."""
        plans = self._plans
        self._queues.write(
            [self._queue(name) for plan in plans for name in (plan.posting.sender, plan.posting.recipient)]
        )
        envelopes: list[NewEnvelope] = []
        deliveries: list[NewDelivery] = []
        for plan in plans:
            self._write(plan, envelopes, deliveries)
        if plans:
            self._unit.pinch.add(envelopes)
            self._unit.deliveries.open((), (), deliveries, ())

    def _write(self, plan: _Plan, envelopes: list[NewEnvelope], deliveries: list[NewDelivery]) -> None:
        posting, now_ns = plan.posting, self._unit.now_ns
        number = 0 if posting.message_id else secrets.randbits(62)
        key = delivery_id(posting.sender, posting.message_id, now_ns, number)
        seq = self._append(plan, key)
        sender, reader = self._queue(posting.sender).queue_id, self._queue(posting.recipient).queue_id
        envelopes.append((seq, key, sender, posting.message_id, posting.message_type, now_ns, posting.raw))
        if plan.is_blocked:
            deliveries.append((seq, reader, "pinch", key, sender, seq, "blocked", now_ns, now_ns))
            return
        deliveries.append((seq, reader, "pinch", key, sender, seq, "queued", now_ns, None))
        needs_no_confirm = not is_confirmed_by_reader(posting.message_type)
        offer = Offer(seq, key.hex(), binary_frame(posting.raw), needs_no_confirm)
        self.offers.setdefault(posting.recipient, []).append(offer)

    def _append(self, plan: _Plan, key: bytes) -> int:
        posting = plan.posting
        body = {
            "recipient": posting.recipient,
            "message_type": posting.message_type,
            "size": len(posting.raw),
            "id": key.hex(),
        }
        if plan.is_blocked:
            body["blocked"] = True
        ref = posting.message_id.decode()
        return self._unit.append("pinch.accepted", mesh=PINCH_MESH, actor=posting.sender, ref=ref, body=body)

    def _is_known(self, posting: Posting) -> bool:
        if not posting.message_id:
            return False
        if (posting.sender, posting.message_id) in self._fresh:
            return True
        sender = self._queue(posting.sender).queue_id
        since_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        return sender != 0 and self._unit.pinch.is_known(sender, posting.message_id, since_ns)

    def _queue(self, address: str) -> GroupQueue:
        return self._queues.find(PINCH_MESH, address)

    def _blockers_of(self, sender: str) -> frozenset[str]:
        blockers = self._blockers.get(sender)
        if blockers is None:
            blockers = self._blockers[sender] = self._unit.deliveries.blockers(PINCH_MESH, sender)
        return blockers


def accept_confirm(unit: Unit, settings: DeliverySettings, job: Confirming, effects: CommitEffects) -> Outcome:
    """Close the row a confirm names and keep the confirm for its sender, or say that it has no effect."""
    queues = unit.deliveries.queues(PINCH_MESH, (job.reader, job.sender))
    reader, sender = queues.get(job.reader), queues.get(job.sender)
    if reader is None or sender is None:
        return Outcome.IGNORED
    row = unit.pinch.find(reader.queue_id, sender.queue_id, job.envelope.delivery_confirm.message_id)
    if row is None:
        return Outcome.IGNORED
    if not _counts(row, unit.now_ns - settings.queue_ttl_ns):
        effects.closed.append(ClosedDeliveries(PINCH_MESH, job.reader, [row.seq]))  # nothing waits for it
        return Outcome.IGNORED
    unit.deliveries.confirm(reader.queue_id, [row.seq], int(row.state in OPEN), int(row.state in PARKED))
    seq = _append_confirm(unit, job, row)
    envelope = forwarded_confirm(job.envelope, row.was_stored)
    kept = StoredConfirm(row.id, row.was_stored, unit.now_ns, envelope)
    unit.deliveries.keep_confirmation(
        sender.queue_id, seq, 1, encode_stored_confirm(kept), settings.confirmation_reserve
    )
    effects.confirmed.append(Confirmed(PINCH_MESH, job.reader, job.sender, (row.seq,), seq, binary_frame(envelope)))
    return Outcome.ACCEPTED


def _counts(row: DeliveryRow, before_ns: int) -> bool:
    return row.state in PARKED or (row.state in OPEN and row.opened_at_ns >= before_ns)


def _append_confirm(unit: Unit, job: Confirming, row: DeliveryRow) -> int:
    given = job.envelope.delivery_confirm
    message_id = given.message_id.decode()
    body = {
        "sender": job.sender,
        "signature": given.signature.hex(),
        "timestamp": given.timestamp,
        "state": given.state,
        "was_stored": row.was_stored,
    }
    seq = unit.append("pinch.confirmed", mesh=PINCH_MESH, actor=job.reader, ref=message_id, body=body)
    closed = {"ids": [row.id], "was_stored": [row.was_stored], "confirmation": message_id}
    unit.append("delivery.confirmed", mesh=PINCH_MESH, actor=job.reader, ref=job.reader, body=closed)
    return seq


log = structlog.get_logger(__name__)


class CommittedSubmissions(NamedTuple):
    """What one unit of work did."""

    outcomes: list[Outcome]
    offers: dict[str, list[Offer]]
    effects: CommitEffects


class SubmissionQueue:
    """Writes envelopes and confirms with the group commit of the relay: all of a loop iteration share a unit."""

    def __init__(self, sessions: ReaderSessions) -> None:
        self._sessions = sessions
        self._committer = sessions.committer

    def submit(self, job: PinchSubmission) -> None:
        """Write a job; its `tell` is called with the outcome."""
        self._committer.submit(self, job, size=job.size)
        self._committer.flush_soon()

    async def drain(self) -> None:
        """Wait until everything is committed or refused; before the store closes."""
        await self._committer.drain()

    def write(self, unit: Unit, jobs: Sequence[PinchSubmission]) -> CommittedSubmissions:
        """Write jobs inside the transaction; called by the committer."""
        return commit_submissions(unit, self._sessions.settings, jobs)

    def on_committed(self, jobs: Sequence[PinchSubmission], result: CommittedSubmissions) -> None:
        """Give committed envelopes to reader sessions and outcomes to senders; called by the committer."""
        self._sessions.apply_effects(result.effects)
        for address, offers in result.offers.items():
            self._sessions.offer((PINCH_MESH, address), offers)
        for job, outcome in zip(jobs, result.outcomes, strict=True):
            job.tell(outcome)

    def on_failed(self, jobs: Sequence[PinchSubmission], failure: BaseException) -> None:
        """Report that the store takes nothing now; called by the committer."""
        if isinstance(failure, PosthouseError):
            log.warning("pinch_not_written", reason=str(failure), jobs=len(jobs))
        else:
            log.error("pinch_not_written", exc_info=failure)
        for job in jobs:
            job.tell(Outcome.BUSY)


def commit_submissions(unit: Unit, settings: DeliverySettings, jobs: Sequence[PinchSubmission]) -> CommittedSubmissions:
    """Do jobs inside the transaction."""
    effects = CommitEffects()
    postings = GroupPostings(unit, settings, [job for job in jobs if isinstance(job, Posting)], effects)
    outcomes = [
        accept_confirm(unit, settings, job, effects) if isinstance(job, Confirming) else postings.claim(job)
        for job in jobs
    ]
    postings.write()
    return CommittedSubmissions(outcomes, postings.offers, effects)
