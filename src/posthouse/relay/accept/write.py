"""B0, B2 and B3: inside the writer's transaction. Known ids, claims, rows.

One call serves a group of parcels. It changes nothing but the store, so that the writer may run it again after a batch
was rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

from posthouse.model.errors import PosthouseError, error
from posthouse.model.kinds import is_ephemeral
from posthouse.relay.accept.claim import claim
from posthouse.relay.accept.destination import Destination, destination_of
from posthouse.relay.accept.job import Job, Parcel
from posthouse.relay.answers import Accepted, Answer, Declined
from posthouse.relay.store.interface import EventRow, Unit


def write_group(unit: Unit, parcels: Sequence[Parcel]) -> list[Answer]:
    """Write what may be written and return an answer for each job, in order."""
    ledger = _Ledger(unit, [job for parcel in parcels for job in parcel.jobs])
    for parcel in parcels:
        held_back: set[Destination] = set()
        for job in parcel.jobs:
            refused = ledger.enter(job, held_back)
            if refused and parcel.is_list and job.row is not None:
                held_back.add(destination_of(job.row))
    return ledger.close()


class _Ledger:
    """The answers of a group, and the rows that wait for being written together."""

    def __init__(self, unit: Unit, jobs: list[Job]) -> None:
        self._unit = unit
        self._known = unit.known([job.row.event.id for job in jobs if _is_stored(job)])  # type: ignore[union-attr]
        self._answers: list[Answer | int] = []
        self._fresh: list[EventRow] = []
        self._places: dict[str, int] = {}

    def enter(self, job: Job, held_back: set[Destination]) -> bool:
        """Note the answer of a job; return whether it is refused."""
        row = job.row
        if row is None:
            self._answers.append(_declined(job, job.refusal))
            return True
        if (duplicate := self._duplicate(row)) is not None:
            self._answers.append(duplicate)
            return False
        refusal = self._refusal(job, row, held_back)
        if refusal is not None:
            self._answers.append(_declined(job, refusal))
            return True
        self._take(row)
        return False

    def close(self) -> list[Answer]:
        """Write the fresh rows and return all answers."""
        seqs = self._unit.add_events(self._fresh) if self._fresh else []
        return [answer if not isinstance(answer, int) else self._settled(answer, seqs) for answer in self._answers]

    def _settled(self, place: int, seqs: list[int]) -> Accepted:
        """Return the answer of the fresh row at a place; a negative one stands for a repetition of it."""
        at = place if place >= 0 else ~place
        return Accepted(self._fresh[at].event.id, seqs[at], place < 0)

    def _duplicate(self, row: EventRow) -> Accepted | int | None:
        event_id = row.event.id
        seq = self._known.get(event_id)
        if seq is not None:
            return Accepted(event_id, seq, True)
        place = self._places.get(event_id)
        return None if place is None else ~place

    def _refusal(self, job: Job, row: EventRow, held_back: set[Destination]) -> PosthouseError | None:
        if job.refusal is not None:
            return job.refusal
        if held_back and destination_of(row) in held_back:
            return error("earlier_refused")
        return claim(self._unit, row)

    def _take(self, row: EventRow) -> None:
        if is_ephemeral(row.event.kind):
            self._answers.append(Accepted(row.event.id, None))
            return
        place = len(self._fresh)
        self._places[row.event.id] = place
        self._fresh.append(row)
        self._answers.append(place)


def _is_stored(job: Job) -> bool:
    return job.row is not None and not is_ephemeral(job.row.event.kind)


def _declined(job: Job, refusal: PosthouseError | None) -> Declined:
    return Declined(job.event_id, refusal or error("internal", reason="a job without a row and without a refusal"))
