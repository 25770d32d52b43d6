"""The audit of a small history in one process: no Spark, the same rules, the same findings.

For tests and fault campaigns, which have a store of some thousand records and no seconds to wait. Everything is held in
memory; a long history is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from posthouse.pipeline.audit.event import EventRow
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.judge import judge_steps
from posthouse.pipeline.audit.line import MARKS, EpochRow, Extent, Lines, Mark, draw_lines
from posthouse.pipeline.audit.record import read_body
from posthouse.pipeline.audit.rules.sequence import REPORT, join_blocks
from posthouse.pipeline.audit.scatter import NO_RULE, Scatter, Scattered, finding_of


class JournalRow(NamedTuple):
    """A row of bronze_journal."""

    epoch: str
    seq: int
    at_ns: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    body: str


class ContentRow(NamedTuple):
    """A row of bronze_events, as far as the audit looks at it."""

    epoch: str
    seq: int
    at_ns: int
    id: str
    pubkey: str | None
    kind: int
    created_at_ns: int
    event: str | None


class Histories(NamedTuple):
    """What is audited together."""

    epochs: Sequence[EpochRow]
    journal: Sequence[JournalRow]
    events: Sequence[ContentRow] = ()


def audit_histories(given: Histories) -> list[Finding]:
    """Return what is wrong with some histories, in the order of stores and seqs."""
    lines = outline(given)
    scatter = Scatter(lines)
    steps: list[Scattered] = []
    for row in given.journal:
        steps.extend(scatter.record(*row))
    for event in given.events:
        row_of = EventRow(event.id, event.pubkey, event.kind, event.created_at_ns)
        steps.extend(scatter.event(event.epoch, event.seq, event.at_ns, row_of, event.event))
    findings = [finding_of(step) for step in steps if step.rule == NO_RULE]
    judged = list(judge_steps(lines, sorted((step for step in steps if step.rule != NO_RULE), key=_order)))
    findings += [each for each in judged if each.code != REPORT]
    forks = {each.epoch: each.fork_seq for each in given.epochs}
    findings += join_blocks(lines, forks, (each for each in judged if each.code == REPORT))
    return sorted(set(findings), key=lambda each: (each.store, each.epoch, each.seq, each.code, each.detail))


def outline(given: Histories) -> Lines:
    """Draw the lines of some histories."""
    extents: dict[str, list[int]] = {}
    marks: list[Mark] = []
    for row in given.journal:
        found = extents.setdefault(row.epoch, [row.seq, row.seq])
        found[0], found[1] = min(found[0], row.seq), max(found[1], row.seq)
        if row.type in MARKS:
            marks += _mark(row)
    known = {each.epoch: each for each in given.epochs}
    stray = [EpochRow(name, None, 0, "unknown") for name in extents if name not in known]
    return draw_lines(
        [*given.epochs, *stray], [Extent(name, first, head, head) for name, (first, head) in extents.items()], marks
    )


def _mark(row: JournalRow) -> Iterable[Mark]:
    body, _fault = read_body(row.type, row.body)
    if body is not None:
        numbers = [body.get(name, 0) for name in ("through_seq", "boot_ns", "token_leap")]
        yield Mark(row.epoch, row.seq, row.type, row.ref or "", *numbers)


def _order(step: Scattered) -> tuple[Any, ...]:
    return step.rule, step.key, step.depth, step.seq, step.rank
