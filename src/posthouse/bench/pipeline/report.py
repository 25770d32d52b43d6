"""One run of all measurements of the pipeline, in one warm session."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.bench.pipeline.growth import measure_growth
from posthouse.bench.pipeline.ingest import measure_bronze, measure_source
from posthouse.bench.pipeline.signatures import measure_signatures
from posthouse.bench.pipeline.stores import make_store
from posthouse.bench.pipeline.terms import MASTER, Scale
from posthouse.bench.requirement import Requirement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROWTH = "ten times the rows, times the time"
REQUIRED = (
    Requirement("source alone, rows/s", "source", "rows_per_s", "at least", 400_000),
    Requirement("bronze ingest of 256 B, rows/s", "bronze", "rows_per_s", "at least", 60_000, 100_000),
    Requirement("audit's signatures, of bare libsodium", "signatures", "ratio", "at least", 0.4, 0.7),
    Requirement(GROWTH, "growth", "times", "at most", 11),
)


def measure_pipeline(folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with _session() as spark:
        return measure_with(spark, folder, scale, tell)


def measure_sizes(folder: Path, sizes: Sequence[int], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure only how the cost of a run grows over histories of these sizes, and return the report."""
    with _session() as spark:
        report = _head() | {"growth": measure_growth(spark, folder, sizes, tell)}
    return report | {"required": [each.judge(report) for each in REQUIRED if each.name == GROWTH]}


@contextmanager
def _session() -> Iterator[SparkSession]:
    """A session of Spark for one measurement."""
    from posthouse.pipeline.session import spark_session

    spark = spark_session(MASTER, shuffle_partitions=4)
    try:
        yield spark
    finally:
        spark.stop()


def _head() -> dict[str, Any]:
    machine = {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0)), "master": MASTER}
    return {"bench": "pipeline", "machine": machine}


def measure_with(spark: SparkSession, folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Do the same in a session that runs already."""
    tell(f"a store of {scale.rows:,} records")
    store = make_store(folder / "relay", scale.rows)
    report = _head() | {"rows": scale.rows}
    tell("the source alone")
    report["source"] = measure_source(spark, store, scale)
    tell("bronze ingest")
    report["bronze"] = measure_bronze(spark, store, folder, scale)
    tell("the audit's signatures")
    report["signatures"] = measure_signatures(spark, folder, scale)
    report["growth"] = measure_growth(spark, folder, (scale.growth_rows, scale.growth_rows * 10), tell)
    return report | {"required": [each.judge(report) for each in REQUIRED]}
