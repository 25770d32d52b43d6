"""silver_conversations: one row per conversation, folded from the messages that belong to it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.declaration import COST, LONG, TEXT, RefreshMode, Table, day, struct
from posthouse.pipeline.tables.silver_conversation_messages import CONVERSATION
from posthouse.pipeline.tables.silver_conversation_messages import TABLE as MESSAGES

SCHEMA = struct(
    source=TEXT,
    mesh=TEXT,
    conversation=TEXT,
    messages=LONG,
    senders=LONG,
    depth=LONG,
    first_at_ns=LONG,
    last_at_ns=LONG,
    input_tokens=LONG,
    output_tokens=LONG,
    cost_usd=COST,
    day=TEXT,
)


def conversations(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per conversation; it opens with its first message."""
    summed = (
        inputs[MESSAGES.name]
        .groupBy(*CONVERSATION)
        .agg(
            f.count("*").alias("messages"),
            f.countDistinct("sender").alias("senders"),
            f.max("depth").alias("depth"),
            f.min("at_ns").alias("first_at_ns"),
            f.max("at_ns").alias("last_at_ns"),
            f.coalesce(f.sum("input_tokens"), f.lit(0)).cast("long").alias("input_tokens"),
            f.coalesce(f.sum("output_tokens"), f.lit(0)).cast("long").alias("output_tokens"),
            f.coalesce(f.sum(f.col("cost_usd").cast(COST)), f.lit(0)).cast(COST).alias("cost_usd"),
        )
    )
    return summed.withColumn("day", day(f.col("first_at_ns"))).select(*SCHEMA.fieldNames())


TABLE = Table("silver_conversations", (MESSAGES.name,), CONVERSATION, SCHEMA, conversations, RefreshMode.FOLD_KEYS)
