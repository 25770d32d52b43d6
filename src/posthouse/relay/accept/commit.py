"""Commit a group of events inside the writer's transaction: look up, authorize, write, answer.

One pass over the group decides each event in order: a duplicate gets its first answer again, a refused one its refusal,
and a new one is written with all others of the group. Messages and confirmations have a handler each; plain events are
decided here. It changes only the store, so the writer may run a group again after a rollback. A fenced write reads its
lock in the same transaction, so no grant can slip in between. A refused event of a list blocks later ones with the same
destination. An event that its author's deletion named in advance is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from posthouse.model.deletion import Deletion
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import PROFILE, READER_KINDS
from posthouse.model.lease import FenceTag, fence_error
from posthouse.model.mesh_limits import MeshLimits
from posthouse.relay.accept.quotas import Quotas
from posthouse.relay.accept.submission import CommitEffects, Job, Submission
from posthouse.relay.store.event_rows import EventRow, address_term
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.accept_results import (
    Accepted,
    Answer,
    Declined,
    ReplacingAccepted,
    naming_message,
    repeated_answer,
)

Destination = tuple[str, str, str]
NO_MESH_IS_LIMITED: Mapping[str, MeshLimits] = {}


class Repeat(NamedTuple):
    """The event repeats another one of its group."""

    original_id: str


#: A row to write, the answer to an event that was accepted before, a refusal, or a repetition within the group.
Decision = EventRow | Answer | PosthouseError | Repeat


class GroupHandler(Protocol):
    """The messages, or the confirmations, of one group; all lookups are made when it is created."""

    @property
    def check_ids_through_ns(self) -> int:
        """Events created up to this time are looked up by their id; later ones are detected as duplicates here."""
        ...

    def decide(self, row: EventRow, known_seq: int | None, refusal: PosthouseError | None) -> Decision:
        """Decide about an event; `known_seq` is its seq if its id was accepted before."""
        ...

    def write(self, accepted: Sequence[tuple[EventRow, int]]) -> list[Accepted]:
        """Write everything that belongs to the events, now that they have a seq; return their answers in order."""
        ...


class KindHandlers(Protocol):
    """Makes the handlers of a group; implemented by posthouse.relay.messages.accept."""

    def open_group(
        self, unit: Unit, rows: Sequence[EventRow], effects: CommitEffects, quotas: Quotas | None
    ) -> dict[type, GroupHandler]:
        """Return the handlers of a group by the type of payload they handle; those that add content use up quota.

        Without quotas there is room for everything.
        """
        ...


class CommittedGroup(NamedTuple):
    """An answer for each event of a group, in order, and what the group did to deliveries."""

    answers: list[Answer]
    effects: CommitEffects


class _Fresh(NamedTuple):
    """Placeholder for the answer of an event that is written with the group."""

    #: index among the fresh rows
    at: int
    is_repeated: bool


def commit_group(
    unit: Unit,
    submissions: Sequence[Submission],
    kind_handlers: KindHandlers,
    limited: Mapping[str, MeshLimits] = NO_MESH_IS_LIMITED,
) -> CommittedGroup:
    """Write the events of a group that may be written, and answer all of them; `limited` has meshes with limits."""
    jobs = [job for submission in submissions for job in submission.jobs]
    group = _Group(unit, jobs, kind_handlers, Quotas(unit, limited) if limited else None)
    for submission in submissions:
        blocked: set[Destination] = set()
        for job in submission.jobs:
            is_refused = group.add(job, blocked)
            if is_refused and submission.is_list and job.row is not None and job.row.event.kind not in READER_KINDS:
                blocked.add(destination_of(job.row))
    return CommittedGroup(group.write(), group.effects)


class _Group:
    """Decisions about the events of a group, in order, and the rows to be written together."""

    def __init__(self, unit: Unit, jobs: Sequence[Job], kind_handlers: KindHandlers, quotas: Quotas | None) -> None:
        self._unit = unit
        self._quotas = quotas
        self.effects = CommitEffects()
        rows = [job.row for job in jobs if job.row is not None and not job.row.is_ephemeral]
        self._handlers = kind_handlers.open_group(unit, rows, self.effects, quotas)
        unchecked = [row.event.id for row in rows if self._needs_id_check(row)]
        self._known = unit.known(unchecked) if unchecked else {}
        #: ids and coordinates that deletions block, including deletions of this group
        self._blocked_ids: set[tuple[str, str]] = set()
        self._deleted_through: dict[bytes, int] = {}
        if unit.has_tombstones:
            addresses = {row.address for row in rows if row.address is not None}
            found = unit.find_tombstones([row.event.id for row in rows], addresses)
            self._blocked_ids |= found.ids
            self._deleted_through |= found.addresses
        self._answers: list[Answer | _Fresh] = []
        self._fresh: list[EventRow] = []
        #: event id -> index of its row among the fresh ones
        self._indexes: dict[str, int] = {}
        #: address of the event of each answer, if it replaces others
        self._addresses: list[bytes | None] = []
        #: address -> the largest (created_at_ns, id) among the fresh rows
        self._largest: dict[bytes, tuple[int, str]] = {}

    def add(self, job: Job, blocked: set[Destination]) -> bool:
        """Decide about an event; return True if it is refused."""
        decision = self._decide(job, blocked)
        self._addresses.append(None if job.row is None else job.row.address)
        if isinstance(decision, EventRow):
            if decision.is_ephemeral:
                self._answers.append(Accepted(decision.event.id, None))
                return False
            self._indexes[decision.event.id] = len(self._fresh)
            self._answers.append(_Fresh(len(self._fresh), is_repeated=False))
            self._fresh.append(decision)
            self._note_largest(decision)
            self._note_deletion(decision)
            return False
        if isinstance(decision, Repeat):
            self._answers.append(_Fresh(self._indexes[decision.original_id], is_repeated=True))
            return False
        answer = _declined(job, decision) if isinstance(decision, PosthouseError) else decision
        self._answers.append(answer)
        return isinstance(answer, Declined)

    def write(self) -> list[Answer]:
        """Write the fresh rows and return all answers."""
        if not self._fresh:
            return self._mark_current([answer for answer in self._answers if not isinstance(answer, _Fresh)])
        seqs = self._unit.add_events(self._fresh)
        accepted = [Accepted(row.event.id, seq) for row, seq in zip(self._fresh, seqs, strict=True)]
        for payload, handler in self._handlers.items():
            indexes = [index for index, row in enumerate(self._fresh) if type(row.payload) is payload]
            if indexes:
                answers = handler.write([(self._fresh[index], seqs[index]) for index in indexes])
                for index, answer in zip(indexes, answers, strict=True):
                    accepted[index] = answer
        return self._mark_current(
            [self._settle(answer, accepted) if isinstance(answer, _Fresh) else answer for answer in self._answers]
        )

    def _mark_current(self, answers: list[Answer]) -> list[Answer]:
        """Mark each accepted event that replaces others as current or not."""
        addresses = {address for address in self._addresses if address is not None}
        if not addresses:
            return answers
        current_seqs = {current.seq for current in self._unit.find_current(addresses).values()}
        current_ids = {answer.id for answer in answers if isinstance(answer, Accepted) and answer.seq in current_seqs}
        for row in self._fresh:
            if row.event.kind == PROFILE and row.event.id in current_ids and row.mirrored_by is None:
                self.effects.profiles.append(row.event)
        return [
            ReplacingAccepted(answer.id, answer.seq, answer.duplicate, answer.seq in current_seqs)
            if address is not None and isinstance(answer, Accepted)
            else answer
            for answer, address in zip(answers, self._addresses, strict=True)
        ]

    def _note_largest(self, row: EventRow) -> None:
        if row.address is not None:
            own = (row.event.created_at_ns, row.event.id)
            self._largest[row.address] = max(own, self._largest.get(row.address, own))

    def _settle(self, fresh: _Fresh, accepted: Sequence[Accepted]) -> Accepted:
        answer = accepted[fresh.at]
        return repeated_answer(answer, self._unit.now_ns) if fresh.is_repeated else answer

    def _needs_id_check(self, row: EventRow) -> bool:
        handler = self._handlers.get(type(row.payload))
        return handler is None or row.event.created_at_ns <= handler.check_ids_through_ns

    def _decide(self, job: Job, blocked: set[Destination]) -> Decision:
        row, refusal = job.row, job.refusal
        if row is None:
            return refusal or error("internal", reason="a job without a row and without a refusal")
        event_id, kind = row.event.id, row.event.kind
        if refusal is None and blocked and kind not in READER_KINDS and destination_of(row) in blocked:
            refusal = error("earlier_refused")
        known_seq = self._known.get(event_id)
        refusal = refusal or self._deletion_error(row)
        if (handler := self._handlers.get(type(row.payload))) is not None:
            return handler.decide(row, known_seq, refusal)
        if known_seq is not None:
            return Accepted(event_id, known_seq, True)
        if event_id in self._indexes:
            return Repeat(event_id)
        return refusal or self._room_error(row) or self._fencing_error(row) or row

    def _room_error(self, row: EventRow) -> PosthouseError | None:
        return None if row.is_ephemeral or self._quotas is None else self._quotas.take(row)

    def _note_deletion(self, row: EventRow) -> None:
        if not isinstance(row.payload, Deletion):
            return
        self._blocked_ids |= {(id_, row.event.pubkey) for id_ in row.payload.ids}
        for address in map(address_term, row.payload.coordinates):
            before_ns = self._deleted_through.get(address, 0)
            self._deleted_through[address] = max(before_ns, row.event.created_at_ns)

    def _deletion_error(self, row: EventRow) -> PosthouseError | None:
        """Return the refusal of an event that a deletion named in advance, or None."""
        is_deleted = (row.event.id, row.event.pubkey) in self._blocked_ids
        if row.address is not None:
            is_deleted |= row.event.created_at_ns <= self._deleted_through.get(row.address, -1)
        return error("event_deleted", id=row.event.id) if is_deleted else None

    def _fencing_error(self, row: EventRow) -> PosthouseError | None:
        """Return why a new event may not be written under its fence, or None."""
        if row.fence is None or row.address is None or row.mirrored_by is not None:
            return None
        current = self._unit.find_current([row.address]).get(row.address)
        largest = self._largest.get(row.address, (0, ""))
        if current is not None:
            largest = max(largest, (current.created_at_ns, current.id))
        return take_fence(self._unit, row, row.fence, largest)


def destination_of(row: EventRow) -> Destination:
    """Return the address of a replacing event, else its first topic or recipient, else its mesh."""
    event = row.event
    if row.address is not None:
        return row.mesh, str(event.kind), f"{event.pubkey}:{event.d}"
    for tag in event.tags:
        if len(tag) > 1 and tag[0] in ("t", "p"):
            return row.mesh, tag[0], tag[1]
    return row.mesh, "", ""


def take_fence(unit: Unit, row: EventRow, fence: FenceTag, largest: tuple[int, str]) -> PosthouseError | None:
    """Record a fenced write that may be written, or return why it may not.

    `largest` is (created_at_ns, id) of the current event of its coordinate: a holder whose clock is behind must not
    believe that its write took effect.
    """
    address = row.address or b""
    leases = unit.find_covering(row.mesh, fence.resource, only_exclusive=True)
    last = unit.find_fence_write(row.mesh, fence.resource, address) if fence.is_strict else None
    code = fence_error(fence, row.event.pubkey, leases, unit.boot_ns, last)
    if code is not None:
        return error(code, resource=fence.resource)
    if (row.event.created_at_ns, row.event.id) < largest:
        return error("not_newest", created_at_ns=largest[0])
    unit.save_fence_write(row.mesh, fence.resource, address, fence.token)
    return None


def _declined(job: Job, refusal: PosthouseError) -> Declined:
    return Declined(job.event_id, naming_message(refusal, None if job.row is None else job.row.payload))
