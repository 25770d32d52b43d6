"""The audit on Spark: workers split rows into steps, Spark distributes the steps by key, workers audit them.

There are three stages: events are verified (signatures take nearly all of the time), records are split, and the steps
of both are sorted by rule and key and audited. Only findings return to the driver. Code that runs in a worker imports
neither apsw nor pyspark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.pipeline.audit.apply_rules import KeyedStep, Scatter, audit_steps
from posthouse.pipeline.audit.finding import SCHEMA, Finding
from posthouse.pipeline.audit.lineage import (
    ANCHOR_FIELDS,
    ANCHOR_TYPES,
    AnchorRecord,
    EpochRow,
    Extent,
    Lineages,
    build_lineages,
)
from posthouse.pipeline.audit.row_checks import EventRow
from posthouse.pipeline.audit.rules.seq_continuity import BLOCK, BlockEnds, Position, join_blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row


#: The columns of KeyedStep, for Spark.
STEPS = "rule int, key string, epoch string, depth int, seq bigint, rank int, at_ns bigint, fact binary"
JOURNAL_COLUMNS = ("epoch", "seq", "at_ns", "type", "mesh", "actor", "ref", "body")
EVENT_COLUMNS = ("epoch", "seq", "at_ns", "id", "pubkey", "kind", "created_at_ns", "event")
_BATCH_ROWS = 20_000  # steps per Arrow batch between the stages
_Batches = Iterator["pa.RecordBatch"]


class Frames(NamedTuple):
    """The histories that are audited together."""

    epochs: Sequence[EpochRow]
    journal: DataFrame
    events: DataFrame
    #: epoch -> the last seq whose event is available; None: all of them.
    events_through: Mapping[str, int] | None = None


class Audited(NamedTuple):
    """The result of an audit: findings, and how much it checked."""

    #: The first findings, at most as many as asked for.
    findings: list[Finding]
    #: All findings, by code.
    counts: dict[str, int]
    records: int
    events: int


class Outline(NamedTuple):
    """The result of one scan of the journal."""

    lineages: Lineages
    blocks: list[BlockEnds]
    records: int


def audit_frames(frames: Frames, max_findings: int = 10_000) -> Audited:
    """Audit histories; return at most `max_findings` findings, and the number of all findings by code."""
    lineages, blocks, records = outline(frames)
    steps = _scatter_records(lineages, frames.journal).unionByName(prove_events(lineages, frames.events))
    audited = _audit_steps(lineages, steps).persist()
    try:
        first = audited.orderBy("store", "epoch", "seq", "code", "detail").limit(max_findings)
        findings = [Finding(*row) for row in first.collect()]
        counts = {row["code"]: row["count"] for row in audited.groupBy("code").count().collect()}
    finally:
        audited.unpersist()
    at_boundaries = list(join_blocks(lineages, {each.epoch: each.fork_seq for each in frames.epochs}, blocks))
    for each in at_boundaries:
        counts[each.code] = counts.get(each.code, 0) + 1
    return Audited([*findings, *at_boundaries][:max_findings], counts, records, frames.events.count())


def outline(frames: Frames) -> Outline:
    """Scan the journal once and build the lineages."""
    from pyspark.sql import functions as f

    block = f.call_function("div", f.col("seq"), f.lit(BLOCK))
    position = f.struct("seq", "at_ns")
    rows = frames.journal.groupBy("epoch", block).agg(f.min(position), f.max(position), f.count("*")).collect()
    blocks = [BlockEnds(epoch, Position(*first), Position(*last)) for epoch, _, first, last, _ in rows]
    numbers = [
        f.coalesce(f.get_json_object("body", f"$.{name}").cast("long"), f.lit(missing))
        for name, missing in ANCHOR_FIELDS.items()
    ]
    found = frames.journal.where(f.col("type").isin(*ANCHOR_TYPES))
    anchors = found.select("epoch", "seq", "type", f.coalesce("ref", f.lit("")), *numbers).collect()
    lineages = _build_lineages(frames, blocks, anchors)
    return Outline(lineages, blocks, sum(row[4] for row in rows))


def _build_lineages(frames: Frames, blocks: Sequence[BlockEnds], anchors: Sequence[Row]) -> Lineages:
    ranges: dict[str, tuple[int, int]] = {}
    for epoch, first, last in blocks:
        low, high = ranges.get(epoch, (first.seq, last.seq))
        ranges[epoch] = min(low, first.seq), max(high, last.seq)
    through = frames.events_through
    extents = [
        Extent(epoch, first, head, head if through is None else through.get(epoch, 0))
        for epoch, (first, head) in ranges.items()
    ]
    known = {each.epoch for each in frames.epochs}
    undeclared = [EpochRow(epoch, None, 0, "unknown") for epoch in ranges if epoch not in known]
    return build_lineages([*frames.epochs, *undeclared], extents, [AnchorRecord(*row) for row in anchors])


# Spark pickles a function by value, together with the globals that it uses. These functions use none: they import the
# functions that do the work.


def prove_events(lineages: Lineages, events: DataFrame) -> DataFrame:
    """Return the steps of events: the stage that verifies signatures."""

    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import prove_batches

        return prove_batches(lineages, batches)

    return events.select(*EVENT_COLUMNS).mapInArrow(work, STEPS)


def _scatter_records(lineages: Lineages, journal: DataFrame) -> DataFrame:
    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import scatter_batches

        return scatter_batches(lineages, batches)

    return journal.select(*JOURNAL_COLUMNS).mapInArrow(work, STEPS)


def _audit_steps(lineages: Lineages, steps: DataFrame) -> DataFrame:
    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.audit.spark_audit import audit_batches

        return audit_batches(lineages, batches)

    order = ("rule", "key", "depth", "seq", "rank")
    return steps.repartition("rule", "key").sortWithinPartitions(*order).mapInArrow(work, SCHEMA)


def prove_batches(lineages: Lineages, batches: _Batches) -> _Batches:
    """Yield the steps of the events of a partition."""
    scatter = Scatter(lineages)

    def steps() -> Iterator[KeyedStep]:
        for batch in batches:
            for epoch, seq, at_ns, id_, pubkey, kind, created_at_ns, content in _rows(batch):
                yield from scatter.event(epoch, seq, at_ns, EventRow(id_, pubkey, kind, created_at_ns), content)

    return _step_batches(steps())


def scatter_batches(lineages: Lineages, batches: _Batches) -> _Batches:
    """Yield the steps of the records of a partition."""
    scatter = Scatter(lineages)
    return _step_batches(step for batch in batches for row in _rows(batch) for step in scatter.record(*row))


def audit_batches(lineages: Lineages, batches: _Batches) -> _Batches:
    """Yield the findings in the sorted steps of a partition."""
    import pyarrow as pa

    steps = (KeyedStep._make(row) for batch in batches for row in _rows(batch))
    findings: list[tuple[Any, ...]] = list(audit_steps(lineages, steps))
    if findings:
        kinds = (pa.string(), pa.string(), pa.string(), pa.string(), pa.int64(), pa.string())
        yield _batch(findings, kinds, Finding._fields)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _step_batches(steps: Iterator[KeyedStep]) -> _Batches:
    import pyarrow as pa

    kinds = (pa.int32(), pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.binary())
    rows: list[tuple[Any, ...]] = []
    for step in steps:
        rows.append(step)
        if len(rows) == _BATCH_ROWS:
            yield _batch(rows, kinds, KeyedStep._fields)
            rows = []
    if rows:
        yield _batch(rows, kinds, KeyedStep._fields)


def _batch(rows: list[tuple[Any, ...]], kinds: Sequence[Any], names: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
