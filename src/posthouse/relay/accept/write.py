"""B0, B2 and B3: inside the writer's transaction. Known ids, claims, rows.

One call serves a group of parcels. It changes nothing but the store, so that the writer may run it again after a batch
was rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from posthouse.model.errors import PosthouseError, error
from posthouse.model.kinds import CONFIRMATION, is_ephemeral
from posthouse.relay.accept.claim import claim
from posthouse.relay.accept.destination import Destination, destination_of
from posthouse.relay.accept.job import Job, Parcel
from posthouse.relay.answers import Accepted, Answer, Declined
from posthouse.relay.deliver.answers import naming_message
from posthouse.relay.deliver.intake import Handler, Intake
from posthouse.relay.deliver.mail import Mail
from posthouse.relay.store.interface import EventRow, Unit


class Written(NamedTuple):
    """What became of a group: an answer for each job, in order, and what mailboxes have to hear."""

    answers: list[Answer]
    mail: Mail


def write_group(unit: Unit, parcels: Sequence[Parcel], intake: Intake) -> Written:
    """Write what may be written."""
    ledger = _Ledger(unit, [job for parcel in parcels for job in parcel.jobs], intake)
    for parcel in parcels:
        held_back: set[Destination] = set()
        for job in parcel.jobs:
            refused = ledger.enter(job, held_back)
            if refused and parcel.is_list and job.row is not None and job.row.event.kind != CONFIRMATION:
                held_back.add(destination_of(job.row))
    return Written(ledger.close(), ledger.mail)


class _Ledger:
    """The answers of a group, and the rows that wait for being written together."""

    def __init__(self, unit: Unit, jobs: list[Job], intake: Intake) -> None:
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

    def _known_answer(self, row: EventRow, handler: Handler | None) -> Answer | int | None:
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
        self, job: Job, row: EventRow, handler: Handler | None, held_back: set[Destination]
    ) -> EventRow | PosthouseError:
        limited, kind = job.refusal, row.event.kind
        if limited is not None and (kind != CONFIRMATION or limited.code != "rate_limited"):
            return limited
        if held_back and kind != CONFIRMATION and destination_of(row) in held_back:
            return error("earlier_refused")
        if handler is not None:
            return handler.claim(row, limited)
        return claim(self._unit, row) or row

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
