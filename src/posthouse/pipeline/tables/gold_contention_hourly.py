"""gold_contention_hourly: grants, waits and take-overs of each resource, by the hour of the grant."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct

KEYS = ("day", "hour", "store", "mesh", "resource")
_FIGURES = ("grants", "owners", "waits", "wait_ms", "wait_ms_max", "take_overs", "renewals", "held_ms")
SCHEMA = struct(day=TEXT, hour=TEXT, store=TEXT, mesh=TEXT, resource=TEXT, **dict.fromkeys(_FIGURES, LONG))


def contention_hourly(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return figures per resource and hour."""
    kept = inputs["silver_leases"].where(~f.col(LOST))
    figures = kept.groupBy(*KEYS).agg(
        f.count("*").alias("grants"),
        f.countDistinct("owner").alias("owners"),
        f.count("wait_ms").alias("waits"),
        f.sum("wait_ms").alias("wait_ms"),
        f.max("wait_ms").alias("wait_ms_max"),
        f.sum(f.col("took_over").cast("long")).alias("take_overs"),
        f.sum("renewals").alias("renewals"),
        f.sum("held_ms").alias("held_ms"),
    )
    return figures.select(*KEYS, *[f.coalesce(name, f.lit(0)).cast("long").alias(name) for name in _FIGURES])


TABLE = Table(
    "gold_contention_hourly",
    ("silver_leases",),
    KEYS,
    SCHEMA,
    contention_hourly,
    RefreshMode.REPLACE_DAYS,
)
