"""Taking history apart: from records and events to the steps that rules judge, and what is wrong with one row alone.

The same code runs in Spark's workers and in one process. A step is a plain tuple, because there are several for each
row; a finding travels as a step of no rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.event import EventRow, prove
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.line import ALL, Lines, Place
from posthouse.pipeline.audit.record import check_record, read_body
from posthouse.pipeline.audit.rule import Entry
from posthouse.pipeline.audit.rules.locks import lock_key
from posthouse.pipeline.audit.rules.registry import NUMBERS, RULES, WANTED
from posthouse.pipeline.audit.rules.sequence import BLOCK

NO_RULE = -1
_SEQUENCE, _ACCEPTED, _LOCKS = NUMBERS["sequence"], NUMBERS["accepted"], NUMBERS["locks"]


class Scattered(NamedTuple):
    """One step on its way to its judge."""

    rule: int
    key: str
    epoch: str
    depth: int
    seq: int
    #: keeps the order of the steps of one record
    rank: int
    at_ns: int
    part: list[Any]


class Scatter:
    """Takes rows apart, given the lines they stand in."""

    def __init__(self, lines: Lines) -> None:
        self._places = lines.places
        self._without_snapshots = {root for root, line in lines.lines.items() if not line.has_snapshots}

    def record(
        self,
        epoch: str,
        seq: int,
        at_ns: int,
        type_: str,
        mesh: str | None,
        actor: str | None,
        ref: str | None,
        text: str,
    ) -> Iterator[Scattered]:
        """Yield the steps of a record."""
        place = self._place(epoch)
        depth = place.depth
        yield Scattered(_SEQUENCE, f"{epoch}\x1f{seq // BLOCK}", epoch, depth, seq, 0, at_ns, [])
        body, fault = read_body(type_, text)
        if body is None or fault is not None:
            yield self._fault(place, epoch, seq, ref, fault or ("", ""))
            return
        entry = Entry(place.root, place.store, seq, at_ns, type_, mesh or "", actor or "", ref or "", body)
        try:
            for fault in check_record(entry):
                yield self._fault(place, epoch, seq, ref, fault)
            yield from self._parts(place, epoch, entry)
        except (KeyError, TypeError, AttributeError, ValueError, PosthouseError) as failure:
            detail = f"the body of a {type_} cannot be understood: {failure!r}"
            yield self._fault(place, epoch, seq, ref, ("record_body_invalid", detail))

    def _parts(self, place: Place, epoch: str, entry: Entry) -> Iterator[Scattered]:
        for number in WANTED.get(entry.type, ()):
            rule = RULES[number]
            if rule.needs_snapshot and place.root in self._without_snapshots:
                continue
            prefix = "" if rule.is_shared else f"{place.root}\x1f"
            for rank, (key, part) in enumerate(rule.scatter(entry)):
                yield Scattered(number, prefix + key, epoch, place.depth, entry.seq, rank, entry.at_ns, part)

    def event(self, epoch: str, seq: int, at_ns: int, row: EventRow, content: str | None) -> Iterator[Scattered]:
        """Yield the steps of an event."""
        place = self._place(epoch)
        key = f"{place.root}\x1f{seq}"
        if content is None:
            yield Scattered(_ACCEPTED, key, epoch, place.depth, seq, 0, at_ns, ["event", row.id, None])
            return
        proof = prove(row, content)
        for fault in proof.faults:
            yield self._fault(place, epoch, seq, row.id, fault)
        yield Scattered(_ACCEPTED, key, epoch, place.depth, seq, 0, at_ns, ["event", row.id, proof.facts])
        if proof.fence is not None:
            mesh, resource, part = proof.fence
            key = f"{place.root}\x1f{lock_key(mesh, resource)}"
            yield Scattered(_LOCKS, key, epoch, place.depth, seq, 0, at_ns, part)

    def _place(self, epoch: str) -> Place:
        return self._places.get(epoch) or Place(epoch, 0, ALL, "unknown")

    def _fault(self, place: Place, epoch: str, seq: int, ref: str | None, fault: tuple[str, str]) -> Scattered:
        code, detail = fault
        return Scattered(NO_RULE, "", epoch, place.depth, seq, 0, 0, [code, place.store, ref or "", detail])


def finding_of(step: Scattered) -> Finding:
    """Return the finding that travelled as a step of no rule."""
    code, store, ref, detail = step.part
    return Finding(code, store, step.epoch, ref, step.seq, detail)
