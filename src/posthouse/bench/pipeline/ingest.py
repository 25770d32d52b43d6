"""The source alone, bronze ingest, and whole runs, warm: the first Python stage of a session does not count."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.bench.pipeline.stores import make_store
from posthouse.bench.pipeline.terms import ROW_BYTES, Scale
from posthouse.model.clock import SystemClock
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run import bring_up_to_date
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


def measure_growth(spark: SparkSession, folder: Path, scale: Scale) -> dict[str, Any]:
    """Return how much longer a whole run takes over ten times the rows, and the memory of this process."""
    seconds: list[float] = []
    for times in (1, 10):
        store = make_store(folder / f"growth{times}", scale.growth_rows * times)
        lake = Lake(folder / f"grown{times}")
        started = time.perf_counter()
        bring_up_to_date(spark, lake, [Access(str(store))])
        seconds.append(time.perf_counter() - started)
    return {
        "rows": [scale.growth_rows, scale.growth_rows * 10],
        "seconds": [round(each, 2) for each in seconds],
        "times": round(seconds[1] / seconds[0], 2),
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _rounds(work: Any, scale: Scale) -> dict[str, Any]:
    rates: list[float] = []
    for number in range(scale.rounds + 1):
        started = time.perf_counter()
        work(number)
        rates.append(scale.rows / (time.perf_counter() - started))
    warm = rates[1:]
    return {"rows_per_s": round(statistics.median(warm)), "rounds": [round(rate) for rate in warm]}
