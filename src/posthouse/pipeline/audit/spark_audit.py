"""The audit on Spark: workers take rows apart, Spark spreads the steps by key, workers audit them.

Three stages: events are proved (signatures: nearly all of the time), records are taken apart, and the steps of both
are sorted by rule and key and audited. Only findings come back to the driver. Code that runs in a worker imports
neither apsw nor pyspark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from posthouse.pipeline.audit.apply_rules import NO_RULE, Scatter, Scattered, audit_steps, finding_of
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import MARKS, EpochRow, Extent, Lines, Mark, draw_lines
from posthouse.pipeline.audit.row_checks import EventRow
from posthouse.pipeline.audit.rules.seq_continuity import REPORT, join_blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


STEPS = "rule int, key string, epoch string, depth int, seq bigint, rank int, at_ns bigint, part binary"
FINDINGS = "code string, store string, epoch string, ref string, seq bigint, detail string"
JOURNAL_COLUMNS = ("epoch", "seq", "at_ns", "type", "mesh", "actor", "ref", "body")
EVENT_COLUMNS = ("epoch", "seq", "at_ns", "id", "pubkey", "kind", "created_at_ns", "event")
_ROWS_AT_ONCE = 20_000  # steps in one Arrow batch on their way out
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(list[Any]).decode
_Batches = Iterator["pa.RecordBatch"]


class Frames(NamedTuple):
    """What is audited together."""

    epochs: Sequence[EpochRow]
    journal: DataFrame
    events: DataFrame
    #: epoch -> how far its events are there; None: as far as its records
    events_through: Mapping[str, int] | None = None


class Audited(NamedTuple):
    """What an audit found, and what it looked at."""

    #: the first of them
    findings: list[Finding]
    #: all of them by code
    counts: dict[str, int]
    records: int
    events: int


def audit_frames(frames: Frames, most: int = 10_000) -> Audited:
    """Audit histories; return at most so many findings, and the number of all."""
    lines, records = outline(frames)
    judged = _audit_steps(
        lines, _scatter_records(lines, frames.journal).unionByName(prove_events(lines, frames.events))
    )
    judged = judged.persist()
    try:
        reports = [Finding(*row) for row in judged.where(f"code = '{REPORT}'").collect()]
        found = judged.where(f"code != '{REPORT}'")
        findings = [
            Finding(*row) for row in found.orderBy("store", "epoch", "seq", "code", "detail").limit(most).collect()
        ]
        counts = {row["code"]: row["count"] for row in found.groupBy("code").count().collect()}
    finally:
        judged.unpersist()
    seams = list(join_blocks(lines, {each.epoch: each.fork_seq for each in frames.epochs}, reports))
    for each in seams:
        counts[each.code] = counts.get(each.code, 0) + 1
    return Audited([*findings, *seams][:most], counts, records, frames.events.count())


def outline(frames: Frames) -> tuple[Lines, int]:
    """Draw the lines of histories with one look at them; return also how many records there are."""
    from pyspark.sql import functions as f

    sums = frames.journal.groupBy("epoch").agg(f.min("seq"), f.max("seq"), f.count("*")).collect()
    through = frames.events_through
    extents = [
        Extent(epoch, first, head, head if through is None else through.get(epoch, 0)) for epoch, first, head, _ in sums
    ]
    fields = [
        f.coalesce(f.get_json_object("body", f"$.{name}").cast("long"), f.lit(0))
        for name in ("through_seq", "boot_ns", "token_leap")
    ]
    marked = frames.journal.where(f.col("type").isin(*MARKS))
    marks = [
        Mark(*row) for row in marked.select("epoch", "seq", "type", f.coalesce("ref", f.lit("")), *fields).collect()
    ]
    known = {each.epoch for each in frames.epochs}
    stray = [EpochRow(each.epoch, None, 0, "unknown") for each in extents if each.epoch not in known]
    return draw_lines([*frames.epochs, *stray], extents, marks), sum(row[3] for row in sums)


# Spark pickles a function by value with the globals it names; these name none, and find the real work by import.


def prove_events(lines: Lines, events: DataFrame) -> DataFrame:
    """Return the steps of events: the stage that verifies signatures."""

    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import prove_batches

        return prove_batches(lines, batches)

    return events.select(*EVENT_COLUMNS).mapInArrow(work, STEPS)


def _scatter_records(lines: Lines, journal: DataFrame) -> DataFrame:
    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import scatter_batches

        return scatter_batches(lines, batches)

    return journal.select(*JOURNAL_COLUMNS).mapInArrow(work, STEPS)


def _audit_steps(lines: Lines, steps: DataFrame) -> DataFrame:
    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import audit_batches

        return audit_batches(lines, batches)

    order = ("rule", "key", "depth", "seq", "rank")
    return steps.repartition("rule", "key").sortWithinPartitions(*order).mapInArrow(work, FINDINGS)


def prove_batches(lines: Lines, batches: _Batches) -> _Batches:
    """Prove the events of a partition."""
    scatter = Scatter(lines)

    def steps() -> Iterator[Scattered]:
        for batch in batches:
            for epoch, seq, at_ns, id_, pubkey, kind, created_at_ns, content in _rows(batch):
                yield from scatter.event(epoch, seq, at_ns, EventRow(id_, pubkey, kind, created_at_ns), content)

    return _step_batches(steps())


def scatter_batches(lines: Lines, batches: _Batches) -> _Batches:
    """Take the records of a partition apart."""
    scatter = Scatter(lines)
    return _step_batches(step for batch in batches for row in _rows(batch) for step in scatter.record(*row))


def audit_batches(lines: Lines, batches: _Batches) -> _Batches:
    """Judge the sorted steps of a partition."""
    faults: list[Finding] = []

    def steps() -> Iterator[Scattered]:
        for batch in batches:
            for row in _rows(batch):
                step = Scattered._make((*row[:-1], _decode(row[-1])))
                if step.rule == NO_RULE:
                    faults.append(finding_of(step))
                else:
                    yield step

    yield from _finding_batches(audit_steps(lines, steps()))
    yield from _finding_batches(iter(faults))


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _step_batches(steps: Iterator[Scattered]) -> _Batches:
    import pyarrow as pa

    kinds = (pa.int32(), pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.binary())
    names = Scattered._fields
    rows: list[tuple[Any, ...]] = []
    for step in steps:
        rows.append((*step[:-1], _encode(step.part)))
        if len(rows) == _ROWS_AT_ONCE:
            yield _batch(rows, kinds, names)
            rows = []
    if rows:
        yield _batch(rows, kinds, names)


def _finding_batches(findings: Iterator[Finding]) -> _Batches:
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.string(), pa.string(), pa.int64(), pa.string())
    rows: list[tuple[Any, ...]] = list(findings)
    if rows:
        yield _batch(rows, kinds, Finding._fields)


def _batch(rows: list[tuple[Any, ...]], kinds: Sequence[Any], names: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
