"""Audit small histories or store files in one process, without Spark: the same rules, the same findings.

Tests, fault campaigns and the check of store files in `pipeline audit` use it. Everything is held in memory. The module
reads through apsw, so a Spark worker must never import it. A relay's own consistency checks, which compare its tables
with its journal, run here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.journal.verify import verify_store
from posthouse.pipeline.audit.apply_rules import KeyedStep, Scatter, audit_steps
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import (
    ANCHOR_FIELDS,
    ANCHOR_TYPES,
    AnchorRecord,
    EpochRow,
    Extent,
    Lineages,
    build_lineages,
)
from posthouse.pipeline.audit.row_checks import EventRow, read_body
from posthouse.pipeline.audit.rules.seq_continuity import BLOCK, BlockEnds, Position, join_blocks
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
    """A row of bronze_events, with the columns that the audit reads."""

    epoch: str
    seq: int
    at_ns: int
    id: str
    pubkey: str | None
    kind: int
    created_at_ns: int
    event: str | None


class Histories(NamedTuple):
    """The histories that are audited together."""

    epochs: Sequence[EpochRow]
    journal: Sequence[JournalRow]
    events: Sequence[ContentRow] = ()


def audit_histories(given: Histories) -> list[Finding]:
    """Return the findings in histories, ordered by store, epoch and seq."""
    lineages = outline(given)
    scatter = Scatter(lineages)
    steps: list[KeyedStep] = []
    for row in given.journal:
        steps.extend(scatter.record(*row))
    for event in given.events:
        columns = EventRow(event.id, event.pubkey, event.kind, event.created_at_ns)
        steps.extend(scatter.event(event.epoch, event.seq, event.at_ns, columns, event.event))
    findings = set(audit_steps(lineages, sorted(steps, key=_order)))
    findings |= set(join_blocks(lineages, {each.epoch: each.fork_seq for each in given.epochs}, _block_ends(given)))
    return sorted(findings, key=lambda each: (each.store, each.epoch, each.seq, each.code, each.detail))


def outline(given: Histories) -> Lineages:
    """Build the lineages of histories."""
    ranges: dict[str, tuple[int, int]] = {}
    anchors: list[AnchorRecord] = []
    for row in given.journal:
        first, head = ranges.get(row.epoch, (row.seq, row.seq))
        ranges[row.epoch] = min(first, row.seq), max(head, row.seq)
        if row.type in ANCHOR_TYPES:
            anchors += _anchor(row)
    known = {each.epoch for each in given.epochs}
    undeclared = [EpochRow(epoch, None, 0, "unknown") for epoch in ranges if epoch not in known]
    extents = [Extent(epoch, first, head, head) for epoch, (first, head) in ranges.items()]
    return build_lineages([*given.epochs, *undeclared], extents, anchors)


def _block_ends(given: Histories) -> Iterator[BlockEnds]:
    positions: dict[tuple[str, int], list[Position]] = {}
    for row in given.journal:
        positions.setdefault((row.epoch, row.seq // BLOCK), []).append(Position(row.seq, row.at_ns))
    for (epoch, _block), found in positions.items():
        yield BlockEnds(epoch, min(found), max(found))


def _anchor(row: JournalRow) -> Iterable[AnchorRecord]:
    body, _fault = read_body(row.type, row.body)
    if body is not None:
        numbers = (body.get(name, missing) for name, missing in ANCHOR_FIELDS.items())
        yield AnchorRecord(row.epoch, row.seq, row.type, row.ref or "", *numbers)


def _order(step: KeyedStep) -> tuple[Any, ...]:
    return step.rule, step.key, step.depth, step.seq, step.rank


KINDS = ("relay", "bus", "outbox", "inbox")
_JOURNAL = "SELECT seq, at_ns, type, mesh, actor, ref, body FROM feed_journal_v1 ORDER BY seq"
_EVENTS = "SELECT seq, at_ns, id, pubkey, kind, created_at_ns, event FROM feed_events_v1 ORDER BY seq"
_EPOCHS = "SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number"


def audit_stores(*paths: Path) -> list[Finding]:
    """Return the findings of each store's own check, and of the audit over all stores together."""
    findings = [finding for path in paths for finding in check_store(path)]
    return findings + audit_histories(read_stores(paths))


def kind_of(path: Path) -> str:
    """Return relay, bus, outbox or inbox; `journal` for a store that has only a journal."""
    kind: str = _read(path, _kind)
    return kind


def check_store(path: Path) -> list[Finding]:
    """Return the findings of a store's own check."""
    kind = kind_of(path)
    rules: tuple[Any, ...] = ()
    if kind == "relay":
        from posthouse.relay.ops.maintenance import RULES

        rules = RULES
    return [Finding("store_damaged", kind, "", path.name, 0, detail) for detail in verify_store(path, rules)]


def read_stores(paths: Iterable[Path]) -> Histories:
    """Read the whole journal of each store, each in one SQLite snapshot."""
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
    writer = _EpochOfSeq(epochs)
    journal = [JournalRow(writer.of(row[0]), *row) for row in _rows(db, _JOURNAL)]
    events = [ContentRow(writer.of(row[0]), *row) for row in _rows(db, _EVENTS)] if kind == "relay" else []
    return Histories(epochs, journal, events)


def _rows(db: apsw.Connection, text: str) -> Iterator[Any]:
    yield from db.execute(text)


class _EpochOfSeq:
    """Map a seq to the epoch in which it was written: the last one that started below it."""

    def __init__(self, epochs: list[EpochRow]) -> None:
        self._epochs = list(reversed(epochs))

    def of(self, seq: int) -> str:
        return next((each.epoch for each in self._epochs if each.fork_seq < seq), self._epochs[-1].epoch)
