"""gold_who_talks_to_whom: deliveries per sender and recipient, by day; the edges of the agent graph.

A delivery that moved to the successor of its reader's key counts only for the successor.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct
from posthouse.pipeline.tables.silver_deliveries import MOVED

KEYS = ("day", "source", "mesh", "sender", "recipient")
SCHEMA = struct(
    day=TEXT, source=TEXT, mesh=TEXT, sender=TEXT, recipient=TEXT, deliveries=LONG, delivered=LONG, last_at_ns=LONG
)


def who_talks_to_whom(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return counts per pair and day."""
    kept = inputs["silver_deliveries"].where(~f.col(LOST) & f.col("sender").isNotNull() & (f.col("state") != MOVED))
    is_delivered = f.col("state").isin("confirmed", "handled")
    counts = kept.groupBy(*KEYS).agg(
        f.count("*").alias("deliveries"),
        f.sum(f.when(is_delivered, 1).otherwise(0)).cast("long").alias("delivered"),
        f.max("opened_at_ns").alias("last_at_ns"),
    )
    return counts.select(*SCHEMA.fieldNames())


TABLE = Table(
    "gold_who_talks_to_whom",
    ("silver_deliveries",),
    KEYS,
    SCHEMA,
    who_talks_to_whom,
    RefreshMode.REPLACE_DAYS,
)
