"""Figures per member and per topic of a mesh, over the last days of its history.

DataFrames in, DataFrames out; `through_ns` is how far the history goes and stands for now, so that the same history
gives the same figures whenever they are made. Times are milliseconds; percentiles are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posthouse.model.limits import DAY_S, SECOND_NS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: addressable; d is stats/<node id>, or stats/#<topic>
STATS_KIND = 30_100
INPUTS = ("silver_messages", "silver_deliveries")
_MS_NS = 1_000_000.0


def recent(inputs: Mapping[str, DataFrame], mesh: str, through_ns: int, days: int) -> dict[str, DataFrame]:
    """Return messages and deliveries of one mesh in the last days, without what a restore has lost."""
    from pyspark.sql import functions as f

    since_ns = through_ns - days * DAY_S * SECOND_NS
    times = {"silver_messages": "at_ns", "silver_deliveries": "opened_at_ns"}
    return {
        name: inputs[name].where(
            ~f.col("lost_by_restore") & (f.col("source") == "relay") & (f.col("mesh") == mesh) & (f.col(at) > since_ns)
        )
        for name, at in times.items()
    }


def member_figures(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per member: what it sent and got, how fast it confirms, and how fast it answers."""
    from pyspark.sql import functions as f

    messages, deliveries = inputs["silver_messages"], inputs["silver_deliveries"]
    sent = messages.groupBy(f.col("sender").alias("member")).agg(
        f.count("*").alias("sent"), f.sum("size").alias("sent_bytes"), f.max("at_ns").alias("last_sent_at_ns")
    )
    is_confirmed = f.col("state") == "confirmed"
    taken = f.when(is_confirmed, f.col("ended_at_ns") - f.col("opened_at_ns"))
    got = deliveries.groupBy(f.col("reader").alias("member")).agg(
        f.count("*").alias("received"),
        _count(is_confirmed).alias("confirmed"),
        _count(f.col("state").isin("queued", "sent")).alias("waiting"),
        _count(f.col("state").isin("rejected", "dead", "expired")).alias("failed"),
        (f.percentile(taken, 0.5) / _MS_NS).alias("confirm_p50_ms"),
    )
    return sent.join(got, "member", "full").join(_answers(messages), "member", "left")


def _answers(messages: DataFrame) -> DataFrame:
    """Return how often and how fast each member replied to somebody else's message."""
    from pyspark.sql import functions as f

    asked = messages.select(
        f.col("message_id").alias("reply_to"), f.col("at_ns").alias("asked_at_ns"), f.col("sender").alias("asker")
    )
    replies = messages.where(f.col("reply_to").isNotNull()).join(asked, "reply_to")
    took = f.col("at_ns") - f.col("asked_at_ns")
    return (
        replies.where(f.col("sender") != f.col("asker"))
        .groupBy(f.col("sender").alias("member"))
        .agg(f.count("*").alias("answers"), (f.percentile(took, 0.5) / _MS_NS).alias("answer_p50_ms"))
    )


def topic_figures(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per topic: how much, by how many, and when last."""
    from pyspark.sql import functions as f

    posts = inputs["silver_messages"].where(f.col("destination_kind") == "topic")
    return posts.groupBy(f.col("destination").alias("topic")).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.countDistinct("sender").alias("senders"),
        f.max("at_ns").alias("last_at_ns"),
    )


def _count(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.sum(f.when(condition, 1).otherwise(0)).cast("long")
