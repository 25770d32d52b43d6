"""The list of rules, and how they are applied: rows become steps by rule and key, and each key's steps are audited.

A rule's place in RULES is its number on the way through Spark. A step is a plain tuple, because there are several
for each row; a finding of a single row travels as a step of no rule. `audit_steps` needs steps sorted by rule, key,
depth, seq and rank, and holds one auditor at a time. The same code runs in Spark's workers and in one process. To
add a rule: 1. a file in audit/rules, 2. RULES here, 3. its codes in audit/finding.py and docs/how-to/pipeline-
audit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import ALL, EpochPlace, Line, Lines
from posthouse.pipeline.audit.row_checks import EventRow, check_record, prove, read_body
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step
from posthouse.pipeline.audit.rules import (
    accepted_once,
    bus_mailbox,
    confirmation_pair,
    delivery_lifecycle,
    inbox_once,
    lease_replay,
    outbox_lifecycle,
    pinch_confirm,
    record_matches_event,
    seq_continuity,
    snapshot_counters,
    stores_agree,
    topic_audience,
)
from posthouse.pipeline.audit.rules.lease_replay import lock_key
from posthouse.pipeline.audit.rules.seq_continuity import BLOCK


def _no_parts(_entry: Entry) -> Iterator[Part]:
    """Steps of the sequence are made of every record, also of one that cannot be read."""
    return iter(())


SEQUENCE = Rule("sequence", frozenset(), _no_parts, seq_continuity.BlockAuditor, sees_lost=True, from_beginning=True)
RULES: tuple[Rule, ...] = (
    SEQUENCE,
    record_matches_event.RULE,
    accepted_once.ONCE,
    accepted_once.CLAIMS,
    delivery_lifecycle.RULE,
    snapshot_counters.RULE,
    confirmation_pair.RULE,
    topic_audience.RULE,
    lease_replay.RULE,
    outbox_lifecycle.ROWS,
    outbox_lifecycle.CLIENT_IDS,
    inbox_once.ROWS,
    inbox_once.MESSAGES,
    stores_agree.RULE,
    bus_mailbox.MAIL,
    bus_mailbox.SUCCESSORS,
    pinch_confirm.RULE,
)
NUMBERS = {rule.name: number for number, rule in enumerate(RULES)}
#: record type -> the numbers of the rules that want it
WANTED: dict[str, tuple[int, ...]] = {
    name: tuple(number for number, rule in enumerate(RULES) if name in rule.types)
    for name in {name for rule in RULES for name in rule.types}
}
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

    def _parts(self, place: EpochPlace, epoch: str, entry: Entry) -> Iterator[Scattered]:
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

    def _place(self, epoch: str) -> EpochPlace:
        return self._places.get(epoch) or EpochPlace(epoch, 0, ALL, "unknown")

    def _fault(self, place: EpochPlace, epoch: str, seq: int, ref: str | None, fault: tuple[str, str]) -> Scattered:
        code, detail = fault
        return Scattered(NO_RULE, "", epoch, place.depth, seq, 0, 0, [code, place.store, ref or "", detail])


def finding_of(step: Scattered) -> Finding:
    """Return the finding that travelled as a step of no rule."""
    code, store, ref, detail = step.part
    return Finding(code, store, step.epoch, ref, step.seq, detail)


_NO_LINE = Line("", "", 0, 0, 0)


def audit_steps(lines: Lines, steps: Iterable[Scattered]) -> Iterator[Finding]:
    """Yield what the judges find, and the reports of blocks of the sequence."""
    judge: Auditor | None = None
    at: tuple[int, str] = (-1, "")
    rule = RULES[0]
    for step in steps:
        if step[:2] != at:
            if judge is not None:
                yield from judge.end()
            at, rule = (step.rule, step.key), RULES[step.rule]
            judge = _auditor_for(lines, rule, step)
        assert judge is not None
        place = lines.places.get(step.epoch) or EpochPlace(step.epoch, 0, ALL, "unknown")
        is_lost = step.seq > place.live_through
        if _applies_to(rule, judge.line, step, is_lost=is_lost):
            yield from judge.take(Step(step.epoch, step.depth, step.seq, is_lost, step.at_ns, step.part))
    if judge is not None:
        yield from judge.end()


def _auditor_for(lines: Lines, rule: Rule, step: Scattered) -> Auditor:
    if rule.is_shared:
        judge = rule.judge(_NO_LINE, step.key)
        judge.lines = tuple(lines.lines.values())
        return judge
    if rule.from_beginning and rule.name == "sequence":
        place = lines.places[step.epoch]
        return rule.judge(lines.lines[place.root], step.key)
    root, _, key = step.key.partition("\x1f")
    return rule.judge(lines.lines[root], key)


def _applies_to(rule: Rule, line: Line, step: Scattered, *, is_lost: bool) -> bool:
    if is_lost and not rule.sees_lost:
        return False
    if rule.from_beginning or rule.is_shared:
        return True
    return line.base_seq is not None and step.seq >= line.base_seq
