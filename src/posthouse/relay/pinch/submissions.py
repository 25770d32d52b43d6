"""Accept Pinch envelopes and confirms: write them in the relay's group commit, then notify readers and senders.

Submissions are written in order of arrival, and readers get them in commit order. They belong to the relay: they are
written even if their connection is gone. A confirm counts for an open or parked delivery of its reader from the sender
it names. Its signature was verified before; the journal keeps it for the audit.
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
    """The outcome of an envelope or a confirm."""

    ACCEPTED = "accepted"
    #: the same message was accepted before
    DUPLICATE = "duplicate"
    QUEUE_FULL = "queue_full"
    #: the confirm matches no delivery that waits for one
    IGNORED = "ignored"
    #: the store accepts nothing now
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class EnvelopeSubmission:
    """An envelope for another agent; `on_outcome` is called after the commit."""

    sender: str
    recipient: str
    message_id: bytes
    message_type: int
    #: the envelope as it came
    raw: bytes
    on_outcome: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, slots=True)
class ConfirmSubmission:
    """A confirm whose signature was verified."""

    reader: str
    sender: str
    envelope: Envelope
    on_outcome: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return 512


PinchSubmission = EnvelopeSubmission | ConfirmSubmission


class _Plan(NamedTuple):
    submission: EnvelopeSubmission
    is_blocked: bool


class GroupEnvelopes:
    """The envelopes of one unit of work."""

    def __init__(
        self, unit: Unit, settings: DeliverySettings, envelopes: Sequence[EnvelopeSubmission], effects: CommitEffects
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._effects = effects
        self._queues = GroupQueues(
            unit,
            settings,
            effects,
            [(PINCH_MESH, address) for each in envelopes for address in (each.sender, each.recipient)],
        )
        self._fresh: set[tuple[str, bytes]] = set()
        self._blockers: dict[str, frozenset[str]] = {}
        self._plans: list[_Plan] = []
        #: written envelopes by recipient, for reader sessions that have sent everything before
        self.offers: dict[str, list[Offer]] = {}

    def reserve(self, submission: EnvelopeSubmission) -> Outcome:
        """Reserve a place in the recipient's queue for `write` to fill."""
        if self._is_duplicate(submission):
            return Outcome.DUPLICATE
        queue = self._queue(submission.recipient)
        if not self._queues.has_room(queue):
            return Outcome.QUEUE_FULL
        is_blocked = submission.recipient in self._blockers_of(submission.sender)
        if not is_blocked:
            queue.added += 1
        self._plans.append(_Plan(submission, is_blocked))
        self._fresh.add((submission.sender, submission.message_id))
        return Outcome.ACCEPTED

    def write(self) -> None:
        """Write all reserved envelopes, in order."""
        plans = self._plans
        self._queues.write(
            [self._queue(name) for plan in plans for name in (plan.submission.sender, plan.submission.recipient)]
        )
        envelopes: list[NewEnvelope] = []
        deliveries: list[NewDelivery] = []
        for plan in plans:
            self._write(plan, envelopes, deliveries)
        if plans:
            self._unit.pinch.add(envelopes)
            self._unit.deliveries.open((), (), deliveries, ())
        for sender, recipient in dict.fromkeys((plan.submission.sender, plan.submission.recipient) for plan in plans):
            self._close_answered(self._queue(sender), self._queue(recipient))

    def _close_answered(self, reader: GroupQueue, other: GroupQueue) -> None:
        """Close the control envelopes that a reader got from another agent and now answers.

        A second copy would overwrite the state that the answer confirms.
        """
        answered = self._unit.pinch.sent_controls(reader.queue_id, other.queue_id) if reader.rows else []
        if answered:
            self._effects.closed.append(self._unit.deliveries.note_read(PINCH_MESH, reader.node, answered))

    def _write(self, plan: _Plan, envelopes: list[NewEnvelope], deliveries: list[NewDelivery]) -> None:
        submission, now_ns = plan.submission, self._unit.now_ns
        number = 0 if submission.message_id else secrets.randbits(62)
        key = delivery_id(submission.sender, submission.message_id, now_ns, number)
        seq = self._append(plan, key)
        sender, reader = self._queue(submission.sender).queue_id, self._queue(submission.recipient).queue_id
        envelopes.append((seq, key, sender, submission.message_id, submission.message_type, now_ns, submission.raw))
        if plan.is_blocked:
            deliveries.append((seq, reader, "pinch", key, sender, seq, "blocked", now_ns, now_ns))
            return
        deliveries.append((seq, reader, "pinch", key, sender, seq, "queued", now_ns, None))
        needs_no_confirm = not is_confirmed_by_reader(submission.message_type, bool(submission.message_id))
        offer = Offer(seq, key.hex(), binary_frame(submission.raw), needs_no_confirm)
        self.offers.setdefault(submission.recipient, []).append(offer)

    def _append(self, plan: _Plan, key: bytes) -> int:
        submission = plan.submission
        body = {
            "recipient": submission.recipient,
            "message_type": submission.message_type,
            "size": len(submission.raw),
            "id": key.hex(),
        }
        if plan.is_blocked:
            body["blocked"] = True
        ref = submission.message_id.decode()
        return self._unit.append("pinch.accepted", mesh=PINCH_MESH, actor=submission.sender, ref=ref, body=body)

    def _is_duplicate(self, submission: EnvelopeSubmission) -> bool:
        if not submission.message_id:
            return False
        if (submission.sender, submission.message_id) in self._fresh:
            return True
        sender = self._queue(submission.sender).queue_id
        since_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        return sender != 0 and self._unit.pinch.is_known(sender, submission.message_id, since_ns)

    def _queue(self, address: str) -> GroupQueue:
        return self._queues.by_name[PINCH_MESH, address]

    def _blockers_of(self, sender: str) -> frozenset[str]:
        blockers = self._blockers.get(sender)
        if blockers is None:
            blockers = self._blockers[sender] = self._unit.deliveries.blockers(PINCH_MESH, sender)
        return blockers


def accept_confirm(
    unit: Unit, settings: DeliverySettings, confirm: ConfirmSubmission, effects: CommitEffects
) -> Outcome:
    """Close the delivery that a confirm names and keep the confirm for the sender, unless it has no effect."""
    queues = unit.deliveries.queues(PINCH_MESH, (confirm.reader, confirm.sender))
    reader, sender = queues.get(confirm.reader), queues.get(confirm.sender)
    if reader is None or sender is None:
        return Outcome.IGNORED
    row = unit.pinch.find(reader.queue_id, sender.queue_id, confirm.envelope.delivery_confirm.message_id)
    if row is None:
        return Outcome.IGNORED
    if not _counts(row, unit.now_ns - settings.queue_ttl_ns):
        effects.closed.append(ClosedDeliveries(PINCH_MESH, confirm.reader, [row.seq]))  # the session need not wait
        return Outcome.IGNORED
    unit.deliveries.confirm(reader.queue_id, [row.seq], int(row.state in OPEN), int(row.state in PARKED))
    seq = _append_confirm(unit, confirm, row)
    envelope = forwarded_confirm(confirm.envelope, row.was_stored)
    kept = StoredConfirm(row.id, row.was_stored, unit.now_ns, envelope)
    unit.deliveries.keep_confirmation(
        sender.queue_id, seq, 1, encode_stored_confirm(kept), settings.confirmation_reserve
    )
    frame = binary_frame(envelope)
    effects.confirmed.append(Confirmed(PINCH_MESH, confirm.reader, confirm.sender, (row.seq,), seq, frame))
    return Outcome.ACCEPTED


def _counts(row: DeliveryRow, before_ns: int) -> bool:
    return row.state in PARKED or (row.state in OPEN and row.opened_at_ns >= before_ns)


def _append_confirm(unit: Unit, confirm: ConfirmSubmission, row: DeliveryRow) -> int:
    given = confirm.envelope.delivery_confirm
    message_id = given.message_id.decode()
    body = {
        "sender": confirm.sender,
        "signature": given.signature.hex(),
        "timestamp": given.timestamp,
        "state": given.state,
        "was_stored": row.was_stored,
    }
    seq = unit.append("pinch.confirmed", mesh=PINCH_MESH, actor=confirm.reader, ref=message_id, body=body)
    closed = {"ids": [row.id], "was_stored": [row.was_stored], "confirmation": message_id}
    unit.append("delivery.confirmed", mesh=PINCH_MESH, actor=confirm.reader, ref=confirm.reader, body=closed)
    return seq


log = structlog.get_logger(__name__)
MAX_IN_FLIGHT = 16_384  # submissions of all agents that wait for their commit
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024


class CommittedEnvelopes(NamedTuple):
    """The result of one unit of work."""

    outcomes: list[Outcome]
    offers: dict[str, list[Offer]]
    effects: CommitEffects


class PinchSubmissions:
    """Writes envelopes and confirms through the relay's group commit."""

    def __init__(self, sessions: ReaderSessions) -> None:
        self._sessions = sessions
        self._committer = sessions.committer
        self._in_flight = 0
        self._in_flight_bytes = 0

    def submit(self, submission: PinchSubmission) -> None:
        """Write a submission; its `on_outcome` is called after the commit, or at once if too many are in flight."""
        if self._in_flight >= MAX_IN_FLIGHT or self._in_flight_bytes + submission.size > MAX_IN_FLIGHT_BYTES:
            submission.on_outcome(Outcome.BUSY)
            return
        self._in_flight += 1
        self._in_flight_bytes += submission.size
        self._committer.submit(self, submission, size=submission.size)
        self._committer.flush_soon()

    async def drain(self) -> None:
        """Wait until every submission is committed or refused; call it before the store closes."""
        await self._committer.drain()

    def write(self, unit: Unit, submissions: Sequence[PinchSubmission]) -> CommittedEnvelopes:
        """Write submissions inside the transaction; called by the committer."""
        return commit_submissions(unit, self._sessions.settings, submissions)

    def on_committed(self, submissions: Sequence[PinchSubmission], result: CommittedEnvelopes) -> None:
        """Give committed envelopes to reader sessions and outcomes to senders; called by the committer."""
        self._note_done(submissions)
        self._sessions.apply_effects(result.effects)
        for address, offers in result.offers.items():
            self._sessions.offer((PINCH_MESH, address), offers)
        for submission, outcome in zip(submissions, result.outcomes, strict=True):
            submission.on_outcome(outcome)

    def on_failed(self, submissions: Sequence[PinchSubmission], failure: BaseException) -> None:
        """Report that the store accepts nothing now; called by the committer."""
        self._note_done(submissions)
        if isinstance(failure, PosthouseError):
            log.warning("pinch_not_written", reason=str(failure), submissions=len(submissions))
        else:
            log.error("pinch_not_written", exc_info=failure)
        for submission in submissions:
            submission.on_outcome(Outcome.BUSY)

    def _note_done(self, submissions: Sequence[PinchSubmission]) -> None:
        self._in_flight -= len(submissions)
        self._in_flight_bytes -= sum(submission.size for submission in submissions)


def commit_submissions(
    unit: Unit, settings: DeliverySettings, submissions: Sequence[PinchSubmission]
) -> CommittedEnvelopes:
    """Write submissions inside the transaction."""
    effects = CommitEffects()
    given = [each for each in submissions if isinstance(each, EnvelopeSubmission)]
    envelopes = GroupEnvelopes(unit, settings, given, effects)
    outcomes = [
        accept_confirm(unit, settings, each, effects)
        if isinstance(each, ConfirmSubmission)
        else envelopes.reserve(each)
        for each in submissions
    ]
    envelopes.write()
    return CommittedEnvelopes(outcomes, envelopes.offers, effects)
