"""gold_latency_hourly: delivery latency, from accepted to confirmed or handled, by the hour the delivery was opened.

Percentiles are exact, so that they do not depend on how the rows are partitioned; times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType

from posthouse.model.limits import MILLISECOND_NS
from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct

KEYS = ("day", "hour", "source", "mesh")
_MS = DoubleType()
SCHEMA = struct(
    day=TEXT, hour=TEXT, source=TEXT, mesh=TEXT, deliveries=LONG, p50_ms=_MS, p90_ms=_MS, p99_ms=_MS, max_ms=_MS
)


def latency_hourly(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return percentiles per hour."""
    done = inputs["silver_deliveries"].where(~f.col(LOST) & f.col("state").isin("confirmed", "handled"))
    latency_ns = f.col("ended_at_ns") - f.col("opened_at_ns")
    rows = done.withColumn("latency_ns", latency_ns).groupBy(*KEYS)
    return rows.agg(
        f.count("*").alias("deliveries"),
        *[_ms(f.percentile("latency_ns", share / 100)).alias(f"p{share}_ms") for share in (50, 90, 99)],
        _ms(f.max("latency_ns")).alias("max_ms"),
    ).select(*SCHEMA.fieldNames())


def _ms(value_ns: Column) -> Column:
    return (value_ns / f.lit(MILLISECOND_NS)).cast("double")


TABLE = Table(
    "gold_latency_hourly",
    ("silver_deliveries",),
    KEYS,
    SCHEMA,
    latency_hourly,
    RefreshMode.REPLACE_DAYS,
)
