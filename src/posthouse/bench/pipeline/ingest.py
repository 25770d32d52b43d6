"""The source alone and bronze ingest, warm: the first Python stage of a session does not count."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.bench.pipeline.terms import ROW_BYTES, Scale
from posthouse.model.clock import SystemClock
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.bronze import Copier
from posthouse.pipeline.run.progress import silent
from posthouse.pipeline.run.run import BATCH_ROWS
from posthouse.pipeline.source.source import register_source
from posthouse.pipeline.source.store import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def measure_source(spark: SparkSession, store: Path, scale: Scale) -> dict[str, Any]:
    """Return how many rows per second come out of the data source, all columns, into nothing."""
    register_source(spark)
    frame = spark.read.format("posthouse").option("url", str(store)).load()
    return _rounds(lambda _round: frame.write.format("noop").mode("overwrite").save(), scale)


def measure_bronze(spark: SparkSession, store: Path, folder: Path, scale: Scale) -> dict[str, Any]:
    """Return how many rows per second get committed to bronze, Merkle roots and statistics included."""

    def ingest(number: int) -> None:
        lake = Lake(folder / f"bronze{number}")
        Copier(spark, lake, Access(str(store)), SystemClock(), BATCH_ROWS, silent).copy()

    return _rounds(ingest, scale) | {"row_bytes": ROW_BYTES}


def _rounds(work: Any, scale: Scale) -> dict[str, Any]:
    rates: list[float] = []
    for number in range(scale.rounds + 1):
        started = time.perf_counter()
        work(number)
        rates.append(scale.rows / (time.perf_counter() - started))
    warm = rates[1:]
    return {"rows_per_s": round(statistics.median(warm)), "rounds": [round(rate) for rate in warm]}
