"""The list of rules, and how to apply them: split rows into steps by rule and key, then audit the steps of each key.

Between the two Spark stages, a rule is identified by its index in RULES, and facts are JSON. `audit_steps` needs steps
sorted by rule, key, depth, seq and rank, and holds one auditor at a time. Spark workers and the in-process audit run
the same code. To add a rule: 1. a file in audit/rules, 2. RULES here, 3. its codes in audit/finding.py and
docs/how-to/pipeline-audit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import NO_LINEAGE, EpochPosition, Lineage, Lineages
from posthouse.pipeline.audit.row_checks import EventRow, check_record, prove, read_body
from posthouse.pipeline.audit.rule import Auditor, Entry, Rule, Step, no_facts
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
from posthouse.pipeline.audit.rules.lease_replay import FencedWrite, lock_key
from posthouse.pipeline.audit.rules.record_matches_event import EventSide
from posthouse.pipeline.audit.rules.seq_continuity import BLOCK


class RowFaultAuditor(Auditor):
    """Report the findings of the checks of single rows."""

    def add_step(self, step: Step) -> Iterator[Finding]:
        yield step.fact


ROW_FAULTS = Rule("row_faults", frozenset(), Finding, no_facts, RowFaultAuditor, sees_lost=True, from_beginning=True)
RULES: tuple[Rule, ...] = (
    ROW_FAULTS,
    seq_continuity.RULE,
    record_matches_event.RULE,
    accepted_once.ONCE,
    accepted_once.CLAIMS,
    delivery_lifecycle.RULE,
    snapshot_counters.RULE,
    confirmation_pair.RULE,
    topic_audience.RULE,
    lease_replay.RULE,
    lease_replay.TOKENS,
    outbox_lifecycle.ROWS,
    outbox_lifecycle.CLIENT_IDS,
    inbox_once.ROWS,
    inbox_once.MESSAGES,
    stores_agree.RULE,
    bus_mailbox.MESSAGES,
    bus_mailbox.SUCCESSORS,
    pinch_confirm.RULE,
)
_INDEXES = {rule.name: index for index, rule in enumerate(RULES)}
#: Record type -> indexes of the rules that accept it.
_RULES_OF_TYPE: dict[str, tuple[int, ...]] = {
    name: tuple(index for index, rule in enumerate(RULES) if name in rule.types)
    for name in {name for rule in RULES for name in rule.types}
}
_ROW_FAULTS, _SEQUENCE = _INDEXES["row_faults"], _INDEXES["sequence"]
_ACCEPTED, _LOCKS = _INDEXES["accepted"], _INDEXES["locks"]
_encode = msgspec.json.Encoder().encode
_DECODERS = [msgspec.json.Decoder(rule.facts) for rule in RULES]
_NO_FACT = _encode(None)


class KeyedStep(NamedTuple):
    """A step in the form that the stage that splits rows passes to the stage that audits keys."""

    #: Index in RULES.
    rule: int
    #: Starts with the root epoch, unless the rule is shared.
    key: str
    epoch: str
    depth: int
    seq: int
    #: Orders the steps of one record.
    rank: int
    at_ns: int
    #: A value of the rule's fact type, as JSON.
    fact: bytes


class Scatter:
    """Split rows into steps."""

    def __init__(self, lineages: Lineages) -> None:
        self._lineages = lineages
        self._without_snapshots = {root for root, each in lineages.by_root.items() if not each.has_snapshots}

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
    ) -> Iterator[KeyedStep]:
        """Yield the steps of a journal record."""
        position = self._lineages.position(epoch)
        key = f"{position.root}\x1f{epoch}\x1f{seq // BLOCK}"
        yield KeyedStep(_SEQUENCE, key, epoch, position.depth, seq, 0, at_ns, _NO_FACT)
        body, fault = read_body(type_, text)
        if body is None or fault is not None:
            yield self._row_fault(position, epoch, seq, ref, fault or ("", ""))
            return
        entry = Entry(position.store, seq, at_ns, type_, mesh or "", actor or "", ref or "", body)
        try:
            for fault in check_record(entry):
                yield self._row_fault(position, epoch, seq, ref, fault)
            yield from self._facts(position, epoch, entry)
        except (KeyError, TypeError, AttributeError, ValueError, PosthouseError) as failure:
            detail = f"the body of this {type_} has an unexpected form: {failure!r}"
            yield self._row_fault(position, epoch, seq, ref, ("record_body_invalid", detail))

    def _facts(self, position: EpochPosition, epoch: str, entry: Entry) -> Iterator[KeyedStep]:
        for index in _RULES_OF_TYPE.get(entry.type, ()):
            rule = RULES[index]
            if rule.needs_snapshot and position.root in self._without_snapshots:
                continue
            prefix = "" if rule.is_shared else f"{position.root}\x1f"
            for rank, (key, fact) in enumerate(rule.scatter(entry)):
                depth, at_ns = position.depth, entry.at_ns
                yield KeyedStep(index, prefix + key, epoch, depth, entry.seq, rank, at_ns, _encode(fact))

    def event(self, epoch: str, seq: int, at_ns: int, row: EventRow, content: str | None) -> Iterator[KeyedStep]:
        """Yield the steps of an event."""
        position = self._lineages.position(epoch)
        facts: dict[str, Any] | None = None
        if content is not None:
            proof = prove(row, content)
            facts = proof.facts
            for fault in proof.faults:
                yield self._row_fault(position, epoch, seq, row.id, fault)
            if (fence := proof.fence) is not None:
                write = FencedWrite(row.id, fence.resource, fence.author, fence.token, fence.address, fence.is_strict)
                key = f"{position.root}\x1f{lock_key(fence.mesh, fence.resource)}"
                # sorted after the record of the same seq, which says whether the event is mirrored
                yield KeyedStep(_LOCKS, key, epoch, position.depth, seq, 1, at_ns, _encode(write))
        key, side = f"{position.root}\x1f{seq}", EventSide(row.id, facts)
        yield KeyedStep(_ACCEPTED, key, epoch, position.depth, seq, 0, at_ns, _encode(side))

    def _row_fault(
        self, position: EpochPosition, epoch: str, seq: int, ref: str | None, fault: tuple[str, str]
    ) -> KeyedStep:
        code, detail = fault
        finding = Finding(code, position.store, epoch, ref or "", seq, detail)
        key = f"{position.root}\x1f{epoch}\x1f{seq}"
        return KeyedStep(_ROW_FAULTS, key, epoch, position.depth, seq, 0, 0, _encode(finding))


def audit_steps(lineages: Lineages, steps: Iterable[KeyedStep]) -> Iterator[Finding]:
    """Audit sorted steps and yield the findings."""
    auditor: Auditor | None = None
    current: tuple[int, str] = (-1, "")
    rule = RULES[0]
    for step in steps:
        if step[:2] != current:
            if auditor is not None:
                yield from auditor.finish()
            current, rule = (step.rule, step.key), RULES[step.rule]
            auditor = _auditor_for(lineages, rule, step.key)
        assert auditor is not None
        position = lineages.position(step.epoch)
        is_lost = step.seq > position.live_through
        if not _applies(rule, auditor.lineage, step, is_lost=is_lost):
            continue
        try:
            fact = _DECODERS[step.rule].decode(step.fact)
        except msgspec.ValidationError as fault:
            detail = f"the rule {rule.name} cannot read it: {fault}"
            yield Finding("record_body_invalid", position.store, step.epoch, "", step.seq, detail)
            continue
        yield from auditor.add_step(Step(step.epoch, step.depth, step.seq, is_lost, step.at_ns, fact))
    if auditor is not None:
        yield from auditor.finish()


def _auditor_for(lineages: Lineages, rule: Rule, key: str) -> Auditor:
    if rule.shared_auditor is not None:
        return rule.shared_auditor(tuple(lineages.by_root.values()), key)
    assert rule.auditor is not None
    root, _, own_key = key.partition("\x1f")
    return rule.auditor(lineages.lineage(root), own_key)


def _applies(rule: Rule, lineage: Lineage, step: KeyedStep, *, is_lost: bool) -> bool:
    if is_lost and not rule.sees_lost:
        return False
    if rule.from_beginning or lineage is NO_LINEAGE:
        return True
    return lineage.base_seq is not None and step.seq >= lineage.base_seq
