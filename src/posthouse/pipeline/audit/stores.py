"""Audit small histories or store files in this process, without Spark: the same rules, the same findings.

For tests, fault campaigns and the driver's own check of a store; everything is held in memory. Reads through apsw,
so this module must never be imported by a Spark worker. A relay's own consistency checks run here too: they compare
its tables with its journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.journal.verify import verify_store
from posthouse.pipeline.audit.apply_rules import NO_RULE, Scatter, Scattered, audit_steps, finding_of
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import MARKS, EpochRow, Extent, Lines, Mark, draw_lines
from posthouse.pipeline.audit.row_checks import EventRow, read_body
from posthouse.pipeline.audit.rules.seq_continuity import REPORT, join_blocks
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.store_lock import refuse_half_restored, shared_store_lock

if TYPE_CHECKING:
    import apsw


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
    judged = list(audit_steps(lines, sorted((step for step in steps if step.rule != NO_RULE), key=_order)))
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


KINDS = ("relay", "bus", "outbox", "inbox")
_JOURNAL = "SELECT seq, at_ns, type, mesh, actor, ref, body FROM feed_journal_v1 ORDER BY seq"
_EVENTS = "SELECT seq, at_ns, id, pubkey, kind, created_at_ns, event FROM feed_events_v1 ORDER BY seq"
_EPOCHS = "SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number"


def audit_stores(*paths: Path) -> list[Finding]:
    """Return what is wrong with some stores: each by its own rules, and all of them together by those of the audit."""
    findings = [finding for path in paths for finding in check_store(path)]
    return findings + audit_histories(read_stores(paths))


def kind_of(path: Path) -> str:
    """Return relay, bus, outbox or inbox; `journal` for a store that is nothing but one."""
    kind: str = _read(path, _kind)
    return kind


def check_store(path: Path) -> list[Finding]:
    """Return what a store's own check finds."""
    kind = kind_of(path)
    rules: tuple[Any, ...] = ()
    if kind == "relay":
        from posthouse.relay.ops.maintenance import RULES

        rules = RULES
    return [Finding("store_damaged", kind, "", path.name, 0, detail) for detail in verify_store(path, rules)]


def read_stores(paths: Iterable[Path]) -> Histories:
    """Read the whole journal of some stores, each in one snapshot."""
    found = [_read(path, _histories) for path in paths]
    return Histories(
        [epoch for each in found for epoch in each.epochs],
        [row for each in found for row in each.journal],
        [row for each in found for row in each.events],
    )


def _read(path: Path, read: Any) -> Any:
    with shared_store_lock(path):
        refuse_half_restored(path)
        db = open_reader(path)
        try:
            db.execute("BEGIN")
            return read(db)
        finally:
            db.close()


def _kind(db: apsw.Connection) -> str:
    components = {name for (name,) in db.execute("SELECT component FROM schema_versions")}
    return next((kind for kind in KINDS if kind in components), "journal")


def _histories(db: apsw.Connection) -> Histories:
    kind = _kind(db)
    rows: Any = list(db.execute(_EPOCHS))
    epochs = [EpochRow(name, parent, fork_seq, kind, at_ns) for name, parent, fork_seq, at_ns in rows]
    owner = _Owner(epochs)
    journal = [JournalRow(owner.of(row[0]), *row) for row in _rows(db, _JOURNAL)]
    events = [ContentRow(owner.of(row[0]), *row) for row in _rows(db, _EVENTS)] if kind == "relay" else []
    return Histories(epochs, journal, events)


def _rows(db: apsw.Connection, text: str) -> Iterator[Any]:
    yield from db.execute(text)


class _Owner:
    """Tells which epoch wrote a row: the last one that began below it."""

    def __init__(self, epochs: list[EpochRow]) -> None:
        self._epochs = list(reversed(epochs))

    def of(self, seq: int) -> str:
        return next((each.epoch for each in self._epochs if each.fork_seq < seq), self._epochs[-1].epoch)
