"""gold_agents_hourly: the health of each agent by hour: messages, deliveries, latency, waits for locks, refusals.

A delivery counts for its recipient, in the hour in which it was opened, a lease for its owner, and a refusal for the
refused sender. A refusal for an exhausted budget means that the bus or the relay stopped a loop. Percentiles are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType

from posthouse.model.limits import MILLISECOND_NS
from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, hour, struct
from posthouse.pipeline.tables.gold_traffic_hourly import STATES
from posthouse.pipeline.tables.silver_deliveries import MOVED

KEYS = ("day", "hour", "source", "mesh", "agent")
_SUMS = ("sent", "received", *STATES, "refused", "loops_stopped", "lock_waits", "lock_wait_ms")
_LARGEST = ("lock_wait_ms_max",)
_MS = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
SCHEMA = struct(
    **dict.fromkeys(KEYS, TEXT),
    **dict.fromkeys((*_SUMS, *_LARGEST), LONG),
    **dict.fromkeys(_MS, DoubleType()),
)
_MINUTE_NS = 60_000 * MILLISECOND_NS
_LOOPS = ("budget_exceeded",)


def agents_hourly(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return figures per agent and hour."""
    parts = (
        _sent(_kept(inputs["silver_messages"])),
        _received(_kept(inputs["silver_deliveries"])),
        _waited(_kept(inputs["silver_leases"])),
        _refused(inputs["silver_refusals"].where(~f.col(LOST))),
    )
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    sums = [f.coalesce(f.sum(name), f.lit(0)).cast("long").alias(name) for name in _SUMS]
    largest = [f.coalesce(f.max(name), f.lit(0)).cast("long").alias(name) for name in _LARGEST]
    known = rows.where(f.col("agent").isNotNull() & (f.col("agent") != ""))
    figures = known.groupBy(*KEYS).agg(*sums, *largest, *[f.max(name).alias(name) for name in _MS])
    return figures.select(*SCHEMA.fieldNames())


def _kept(rows: DataFrame) -> DataFrame:
    return rows.where(~f.col(LOST)).withColumn("mesh", f.coalesce("mesh", f.lit("")))


def _sent(messages: DataFrame) -> DataFrame:
    return messages.groupBy(*KEYS).agg(f.count("*").alias("sent"))


def _received(deliveries: DataFrame) -> DataFrame:
    is_done = f.col("state").isin(*STATES["delivered"])
    latency_ns = f.when(is_done, f.col("ended_at_ns") - f.col("opened_at_ns"))
    states = [_count(f.col("state").isin(*names)).alias(column) for column, names in STATES.items()]
    percentiles = [_ms(f.percentile(latency_ns, share / 100)).alias(f"p{share}_ms") for share in (50, 90, 99)]
    counted = deliveries.where(f.col("state") != MOVED)
    rows = counted.withColumn("agent", f.coalesce("recipient", "reader")).groupBy(*KEYS)
    return rows.agg(f.count("*").alias("received"), *states, *percentiles, _ms(f.max(latency_ns)).alias("max_ms"))


def _waited(leases: DataFrame) -> DataFrame:
    rows = leases.withColumns({"agent": f.col("owner"), "source": f.lit("relay")}).groupBy(*KEYS)
    return rows.agg(
        f.count("wait_ms").alias("lock_waits"),
        f.sum("wait_ms").alias("lock_wait_ms"),
        f.max("wait_ms").alias("lock_wait_ms_max"),
    )


def _refused(refusals: DataFrame) -> DataFrame:
    """Return refusals by sender, which is the first word of a refusal's key."""
    given = {
        "agent": f.substring_index("key", " ", 1),
        "mesh": f.lit(""),
        "hour": hour(f.col("minute") * f.lit(_MINUTE_NS)),
    }
    loops = f.when(f.col("code").isin(*_LOOPS), f.col("count")).otherwise(0)
    rows = refusals.withColumns(given).groupBy(*KEYS)
    return rows.agg(f.sum("count").alias("refused"), f.sum(loops).alias("loops_stopped"))


def _count(condition: Column) -> Column:
    return f.sum(f.when(condition, 1).otherwise(0))


def _ms(value_ns: Column) -> Column:
    return (value_ns / f.lit(MILLISECOND_NS)).cast("double")


TABLE = Table(
    "gold_agents_hourly",
    ("silver_messages", "silver_deliveries", "silver_leases", "silver_refusals"),
    KEYS,
    SCHEMA,
    agents_hourly,
    RefreshMode.REPLACE_DAYS,
)
