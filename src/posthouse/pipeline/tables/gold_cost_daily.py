"""gold_cost_daily: tokens and dollars by day, sender and model, from the usage that messages report."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import COST, LONG, TEXT, RefreshMode, Table, struct

KEYS = ("day", "source", "mesh", "sender", "model")
SCHEMA = struct(
    day=TEXT,
    source=TEXT,
    mesh=TEXT,
    sender=TEXT,
    model=TEXT,
    messages=LONG,
    input_tokens=LONG,
    output_tokens=LONG,
    cost_usd=COST,
)


def cost_daily(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return sums over the messages that report their usage."""
    reported = inputs["silver_messages"].where(~f.col(LOST) & f.col("model").isNotNull())
    rows = reported.withColumn("mesh", f.coalesce("mesh", f.lit("")))
    sums = rows.groupBy(*KEYS).agg(
        f.count("*").alias("messages"),
        f.coalesce(f.sum("input_tokens"), f.lit(0)).cast("long").alias("input_tokens"),
        f.coalesce(f.sum("output_tokens"), f.lit(0)).cast("long").alias("output_tokens"),
        f.coalesce(f.sum(f.col("cost_usd").cast(COST)), f.lit(0)).cast(COST).alias("cost_usd"),
    )
    return sums.select(*SCHEMA.fieldNames())


TABLE = Table("gold_cost_daily", ("silver_messages",), KEYS, SCHEMA, cost_daily, RefreshMode.REPLACE_DAYS)
