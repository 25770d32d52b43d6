"""gold_refusals_daily: refusals by day, code and key."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct

KEYS = ("day", "source", "code", "key")
SCHEMA = struct(day=TEXT, source=TEXT, code=TEXT, key=TEXT, count=LONG, minutes=LONG)


def refusals_daily(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return sums per day, and the number of minutes with a refusal."""
    kept = inputs["silver_refusals"].where(~f.col(LOST))
    sums = kept.groupBy(*KEYS).agg(f.sum("count").alias("count"), f.countDistinct("minute").alias("minutes"))
    return sums.select(*SCHEMA.fieldNames())


TABLE = Table(
    "gold_refusals_daily",
    ("silver_refusals",),
    KEYS,
    SCHEMA,
    refusals_daily,
    RefreshMode.REPLACE_DAYS,
)
