"""All measurements of the pipeline in one warm Spark session, with their required values.

They are: the source alone, bronze ingest up to the commit (with statistics and Merkle roots), the signature stage of
the audit compared with bare libsodium on the same cores, and growth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.comparison import Requirement, compare, describe_machine
from bench.floors import VerifyFloor
from bench.pipeline_growth import measure_growth
from bench.pipeline_stores import make_store
from bench.raw_stream import EventSource
from bench.scales import MASTER, ROW_BYTES, PipelineScale
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event, encode_event
from posthouse.pipeline.audit.lineage import EpochRow, Extent, Lineages, build_lineages
from posthouse.pipeline.audit.spark_audit import EVENT_COLUMNS, prove_events
from posthouse.pipeline.connector.data_source import register_source
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier, ignore_step
from posthouse.pipeline.run.lake_run import BATCH_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def measure_source(spark: SparkSession, store: Path, scale: PipelineScale) -> dict[str, Any]:
    """Return the rows per second that the data source yields, with all columns, into a sink that drops them."""
    register_source(spark)
    frame = spark.read.format("posthouse").option("url", str(store)).load()
    return _rounds(lambda _round: frame.write.format("noop").mode("overwrite").save(), scale)


def measure_bronze(spark: SparkSession, store: Path, folder: Path, scale: PipelineScale) -> dict[str, Any]:
    """Return the rows per second that are committed to bronze, with Merkle roots and statistics."""

    def ingest(number: int) -> None:
        lake = Lake(folder / f"bronze{number}")
        Copier(spark, lake, Access(str(store)), SystemClock(), BATCH_ROWS, ignore_step).copy()

    return _rounds(ingest, scale) | {"row_bytes": ROW_BYTES}


def _rounds(work: Any, scale: PipelineScale) -> dict[str, Any]:
    rates: list[float] = []
    for number in range(scale.rounds + 1):
        started = time.perf_counter()
        work(number)
        rates.append(scale.rows / (time.perf_counter() - started))
    warm = rates[1:]
    return {"rows_per_s": round(statistics.median(warm)), "rounds": [round(rate) for rate in warm]}


_EPOCH = "e" * 32


def measure_signatures(spark: SparkSession, folder: Path, scale: PipelineScale) -> dict[str, Any]:
    """Return the events per second that the stage proves, compared with two threads of bare libsodium."""
    events = EventSource().take(scale.events)
    stored = _store(spark, folder / "events", events)
    lineages = build_lineages(
        [EpochRow(_EPOCH, None, 0, "relay", 0)], [Extent(_EPOCH, 1, len(events), len(events))], []
    )
    floor = VerifyFloor(events)
    try:
        compared = compare(
            "signatures",
            lambda: _rate(lineages, stored, len(events)),
            floor.rate,
            rounds=scale.rounds,
            required=0.4,
            aim=0.7,
        )
    finally:
        floor.close()
    return compared.value()


def _store(spark: SparkSession, folder: Path, events: list[Event]) -> DataFrame:
    """Write events into two files, one per core, and return them as a frame."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    half = (len(events) + 1) // 2
    for number, start in enumerate(range(0, len(events), half)):
        rows = [_row(start + offset + 1, event) for offset, event in enumerate(events[start : start + half])]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet")
    return spark.read.parquet(str(folder))


def _row(seq: int, event: Event) -> dict[str, Any]:
    row = {
        "epoch": _EPOCH,
        "seq": seq,
        "at_ns": event.created_at_ns,
        "id": event.id,
        "pubkey": event.pubkey,
        "kind": event.kind,
        "created_at_ns": event.created_at_ns,
        "event": encode_event(event).decode(),
    }
    return {name: row[name] for name in EVENT_COLUMNS}


def _rate(lineages: Lineages, stored: DataFrame, count: int) -> float:
    started = time.perf_counter()
    prove_events(lineages, stored).write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - started)


GROWTH = "Time of a run with ten times the rows, relative to one"
NEW_GROWTH = "Processor time of a run with 100 new records on ten times the history, relative to one"
REQUIRED = (
    Requirement("Source alone, rows/s", "source", "rows_per_s", "at least", 400_000),
    Requirement("Bronze ingest of 256-byte rows, rows/s", "bronze", "rows_per_s", "at least", 60_000, 100_000),
    Requirement(
        "Signature stage of the audit, relative to bare libsodium", "signatures", "ratio", "at least", 0.4, 0.7
    ),
    Requirement(GROWTH, "growth", "times", "at most", 11),
    Requirement("Processor seconds of a run with 100 new records", "growth", "new_cpu_seconds", "at most", 15, 8),
    Requirement(NEW_GROWTH, "growth", "new_times", "at most", 1.3),
    Requirement("Seconds of a query that starts Spark", "growth", "query_seconds", "at most", 8),
)


def measure_pipeline(folder: Path, scale: PipelineScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with _session() as spark:
        return measure_with(spark, folder, scale, on_progress)


def measure_sizes(folder: Path, sizes: Sequence[int], on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure only the growth of a run's cost over histories of these sizes, and return the report."""
    with _session() as spark:
        growth = measure_growth(spark, folder, sizes, PipelineScale().new_runs, on_progress)
    report = _head() | {"growth": growth}
    return report | {"required": [each.evaluate(report) for each in REQUIRED if each.section == "growth"]}


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Run a Spark session for one measurement."""
    from posthouse.pipeline.session import spark_session

    spark = spark_session(MASTER, shuffle_partitions=4)
    try:
        yield spark
    finally:
        spark.stop()


def _head() -> dict[str, Any]:
    return {"bench": "pipeline", "machine": describe_machine() | {"master": MASTER}}


def measure_with(
    spark: SparkSession, folder: Path, scale: PipelineScale, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure everything in a running session."""
    on_progress(f"a store of {scale.rows:,} records")
    store = make_store(folder / "relay", scale.rows)
    report = _head() | {"rows": scale.rows}
    on_progress("the source alone")
    report["source"] = measure_source(spark, store, scale)
    on_progress("bronze ingest")
    report["bronze"] = measure_bronze(spark, store, folder, scale)
    on_progress("the audit's signatures")
    report["signatures"] = measure_signatures(spark, folder, scale)
    sizes = (scale.growth_rows, scale.growth_rows * 10)
    report["growth"] = measure_growth(spark, folder, sizes, scale.new_runs, on_progress)
    return report | {"required": [each.evaluate(report) for each in REQUIRED]}
