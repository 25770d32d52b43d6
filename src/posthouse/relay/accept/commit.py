"""Commit a group of submissions inside the writer's transaction: known ids, fences, destinations, rows, answers.

It changes nothing but the store, so the writer may run it again after a rollback. A fenced write reads its lock in
the same transaction, so no grant can come between. A refused event of a list holds back later ones with the same
destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import read_fence_tag
from posthouse.model.kinds import CONFIRMATION, is_ephemeral, is_replacing
from posthouse.model.lease import FenceTag, fence_error
from posthouse.relay.accept.submission import CommitEffects, Job, Submission
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import Accepted, Answer, Declined, naming_message

Destination = tuple[str, str, str]


def destination_of(row: EventRow) -> Destination:
    """Return the line of a replacing event, else its first topic or recipient, else its mesh."""
    event = row.event
    if is_replacing(event.kind):
        return row.mesh, str(event.kind), f"{event.pubkey}:{event.d}"
    for tag in event.tags:
        if len(tag) > 1 and tag[0] in ("t", "p"):
            return row.mesh, tag[0], tag[1]
    return row.mesh, "", ""


def take_fence(unit: Unit, row: EventRow, fence: FenceTag) -> PosthouseError | None:
    """Note a fenced write that may be written, or return why it may not."""
    address = row.address or b""
    entry = unit.find_lock(row.mesh, fence.resource)
    last = unit.find_fence_write(row.mesh, fence.resource, address) if fence.is_strict else None
    code = fence_error(fence, row.event.pubkey, None if entry is None else entry.row, unit.boot_ns, last)
    if code is not None:
        return error(code, resource=fence.resource)
    unit.save_fence_write(row.mesh, fence.resource, address, fence.token)
    return None


def fencing_error(unit: Unit, row: EventRow) -> PosthouseError | None:
    """Return why an event that is new cannot be written, or None."""
    if not is_replacing(row.event.kind):
        return None
    fence = read_fence_tag(row.event)
    return None if fence is None else take_fence(unit, row, fence)


class KindHandler(Protocol):
    """Handles the rows of one group whose tags have a meaning of one kind: messages, or confirmations."""

    def is_told_by_id(self, row: EventRow) -> bool:
        """Return True if duplicates of this event can only be detected by event id; else `known` detects them."""
        ...

    def known(self, row: EventRow) -> Answer | str | None:
        """Return the answer to an event accepted before under another id, or the id of its original in this group."""
        ...

    def claim(self, row: EventRow, limited: PosthouseError | None) -> EventRow | PosthouseError:
        """Return the row with its journal record complete, or why it cannot be written."""
        ...

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        ...

    def answer(self, row: EventRow, seq: int, *, is_repeated: bool) -> Accepted:
        """Return the answer of a row of this group; a repeated one is in it twice."""
        ...


class GroupStage(Protocol):
    """The messages and confirmations of one group."""

    mail: CommitEffects
    handlers: dict[type, KindHandler]

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> None:
        """Write everything that belongs to rows that have their seq now."""
        ...


class Stage(Protocol):
    """The part of a commit that handles messages and confirmations; implemented by posthouse.relay.messages."""

    def begin(self, unit: Unit, rows: Sequence[EventRow]) -> GroupStage:
        """Begin the messages and confirmations among the rows of a group."""
        ...


class CommittedGroup(NamedTuple):
    """What became of a group: an answer for each job, in order, and what mailboxes have to hear."""

    answers: list[Answer]
    mail: CommitEffects


def commit_group(unit: Unit, parcels: Sequence[Submission], intake: Stage) -> CommittedGroup:
    """Write what may be written."""
    ledger = _GroupCommit(unit, [job for parcel in parcels for job in parcel.jobs], intake)
    for parcel in parcels:
        held_back: set[Destination] = set()
        for job in parcel.jobs:
            refused = ledger.enter(job, held_back)
            if refused and parcel.is_list and job.row is not None and job.row.event.kind != CONFIRMATION:
                held_back.add(destination_of(job.row))
    return CommittedGroup(ledger.close(), ledger.mail)


class _GroupCommit:
    """The answers of a group, and the rows that wait for being written together."""

    def __init__(self, unit: Unit, jobs: list[Job], intake: Stage) -> None:
        self._unit = unit
        rows = [job.row for job in jobs if job.row is not None and not is_ephemeral(job.row.event.kind)]
        self._batch = intake.begin(unit, rows)
        self._handlers = self._batch.handlers
        self._known = unit.known([row.event.id for row in rows if self._is_told_by_id(row)])
        self.mail = self._batch.mail
        self._answers: list[Answer | int] = []
        self._fresh: list[EventRow] = []
        self._places: dict[str, int] = {}

    def enter(self, job: Job, held_back: set[Destination]) -> bool:
        """Note the answer of a job; return whether it is refused."""
        row = job.row
        if row is None:
            self._answers.append(_declined(job, job.refusal))
            return True
        handler = self._handlers.get(type(row.matter))
        if (known := self._known_answer(row, handler)) is not None:
            self._answers.append(known)
            return isinstance(known, Declined)
        claimed = self._claim(job, row, handler, held_back)
        if isinstance(claimed, PosthouseError):
            self._answers.append(_declined(job, claimed))
            return True
        self._take(claimed)
        return False

    def close(self) -> list[Answer]:
        """Write the fresh rows and return all answers."""
        seqs = self._unit.add_events(self._fresh) if self._fresh else []
        mail = [(row, seq) for row, seq in zip(self._fresh, seqs, strict=True) if row.matter is not None]
        if mail:
            self._batch.write(mail)
        return [answer if not isinstance(answer, int) else self._settled(answer, seqs) for answer in self._answers]

    def _is_told_by_id(self, row: EventRow) -> bool:
        handler = self._handlers.get(type(row.matter))
        return handler is None or handler.is_told_by_id(row)

    def _settled(self, place: int, seqs: list[int]) -> Accepted:
        """Return the answer of the fresh row at a place; a negative one stands for a repetition of it."""
        at = place if place >= 0 else ~place
        row, seq, is_repeated = self._fresh[at], seqs[at], place < 0
        handler = self._handlers.get(type(row.matter))
        if handler is not None:
            return handler.answer(row, seq, is_repeated=is_repeated)
        return Accepted(row.event.id, seq, is_repeated)

    def _known_answer(self, row: EventRow, handler: KindHandler | None) -> Answer | int | None:
        event_id = row.event.id
        if handler is not None:
            message = handler.known(row)
            if isinstance(message, str):
                return ~self._places[message]
            if message is not None:
                return message
        seq = self._known.get(event_id)
        if seq is not None:
            return Accepted(event_id, seq, True)
        place = self._places.get(event_id)
        return None if place is None else ~place

    def _claim(
        self, job: Job, row: EventRow, handler: KindHandler | None, held_back: set[Destination]
    ) -> EventRow | PosthouseError:
        limited, kind = job.refusal, row.event.kind
        if limited is not None and (kind != CONFIRMATION or limited.code != "rate_limited"):
            return limited
        if held_back and kind != CONFIRMATION and destination_of(row) in held_back:
            return error("earlier_refused")
        if handler is not None:
            return handler.claim(row, limited)
        return fencing_error(self._unit, row) or row

    def _take(self, row: EventRow) -> None:
        if is_ephemeral(row.event.kind):
            self._answers.append(Accepted(row.event.id, None))
            return
        place = len(self._fresh)
        self._places[row.event.id] = place
        self._fresh.append(row)
        self._answers.append(place)


def _declined(job: Job, refusal: PosthouseError | None) -> Declined:
    refusal = refusal or error("internal", reason="a job without a row and without a refusal")
    return Declined(job.event_id, naming_message(refusal, None if job.row is None else job.row.matter))
