"""Alerts: who floods, who has fallen silent, whose messages are tried again and again.

An alert is named by what it is about and the hour or opening it speaks of, never by when it was found: found twice it
is the same alert, and the relay takes it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_S = 3_600
COLUMNS = ("alert", "member", "since", "count")


@dataclass(frozen=True, slots=True)
class Alarm:
    """From when on something is worth an alert."""

    #: messages of one member in one hour
    flood_per_hour: int = 1_000
    #: age of the oldest message that a member has not confirmed
    silent_s: float = 24 * _HOUR_S
    #: times one delivery was sent
    attempts: int = 5


def find_alerts(inputs: Mapping[str, DataFrame], through_ns: int, alarm: Alarm) -> DataFrame:
    """Return alert, member, since (an hour, or a time in nanoseconds, as text) and count."""
    flood = _flood(inputs["silver_messages"], alarm.flood_per_hour)
    silent = _silent(inputs["silver_deliveries"], through_ns - round(alarm.silent_s * SECOND_NS))
    storm = _storm(inputs["silver_deliveries"], alarm.attempts)
    return flood.unionByName(silent).unionByName(storm).select(*COLUMNS)


def _flood(messages: DataFrame, per_hour: int) -> DataFrame:
    from pyspark.sql import functions as f

    hourly = messages.groupBy(f.col("sender").alias("member"), f.col("hour").cast("string").alias("since"))
    counted = hourly.agg(f.count("*").alias("count")).where(f.col("count") >= per_hour)
    return counted.withColumn("alert", f.lit("flood"))


def _silent(deliveries: DataFrame, before_ns: int) -> DataFrame:
    """Members that confirmed nothing since the oldest message that waits for them was opened."""
    from pyspark.sql import functions as f

    is_open = f.col("state").isin("queued", "sent")
    found = deliveries.groupBy(f.col("reader").alias("member")).agg(
        f.min(f.when(is_open, f.col("opened_at_ns"))).alias("oldest_ns"),
        f.max(f.when(f.col("state") == "confirmed", f.col("ended_at_ns"))).alias("confirmed_at_ns"),
        f.sum(f.when(is_open, 1).otherwise(0)).alias("count"),
    )
    is_quiet = f.col("confirmed_at_ns").isNull() | (f.col("confirmed_at_ns") < f.col("oldest_ns"))
    silent = found.where((f.col("oldest_ns") < before_ns) & is_quiet)
    return silent.select(
        f.lit("silent_agent").alias("alert"), "member", f.col("oldest_ns").cast("string").alias("since"), "count"
    )


def _storm(deliveries: DataFrame, attempts: int) -> DataFrame:
    from pyspark.sql import functions as f

    hourly = deliveries.where(f.col("attempts") >= attempts).groupBy(
        f.col("reader").alias("member"), f.col("hour").cast("string").alias("since")
    )
    return hourly.agg(f.count("*").alias("count")).withColumn("alert", f.lit("retry_storm"))
