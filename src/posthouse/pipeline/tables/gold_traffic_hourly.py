"""gold_traffic_hourly: messages, bytes and delivery outcomes, by hour.

A delivery counts in the hour in which it was opened, even if it ends later. A delivery that moved to the successor of
its reader's key counts once, for the successor.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct
from posthouse.pipeline.tables.silver_deliveries import MOVED

KEYS = ("day", "hour", "source", "mesh")
#: Column -> the delivery states that it counts.
STATES = {
    "delivered": ("confirmed", "handled"),
    "waiting": ("queued", "sent"),
    "rejected": ("rejected",),
    "failed": ("failed", "dead"),
    "expired": ("expired",),
    "blocked": ("blocked",),
    "removed": ("purged", "replaced"),
}
_COUNTS = ("messages", "bytes", "senders", "deliveries", *STATES)
SCHEMA = struct(day=TEXT, hour=TEXT, source=TEXT, mesh=TEXT, **dict.fromkeys(_COUNTS, LONG))


def traffic_hourly(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return counts per hour."""
    messages, deliveries = _kept(inputs["silver_messages"]), _kept(inputs["silver_deliveries"])
    sent = messages.groupBy(*KEYS).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.countDistinct("sender").alias("senders"),
    )
    states = [_count(f.col("state").isin(*names)).alias(column) for column, names in STATES.items()]
    opened = deliveries.where(f.col("state") != MOVED).groupBy(*KEYS).agg(f.count("*").alias("deliveries"), *states)
    joined = sent.join(opened, list(KEYS), "full")
    return joined.select(*KEYS, *[f.coalesce(name, f.lit(0)).cast("long").alias(name) for name in _COUNTS])


def _kept(rows: DataFrame) -> DataFrame:
    return rows.where(~f.col(LOST)).withColumn("mesh", f.coalesce("mesh", f.lit("")))


def _count(condition: Column) -> Column:
    return f.sum(f.when(condition, 1).otherwise(0))


TABLE = Table(
    "gold_traffic_hourly",
    ("silver_messages", "silver_deliveries"),
    KEYS,
    SCHEMA,
    traffic_hourly,
    RefreshMode.REPLACE_DAYS,
)
