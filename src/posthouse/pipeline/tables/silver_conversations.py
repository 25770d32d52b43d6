"""silver_conversations: messages grouped by the conversation they name, or by the messages they reply to.

A message that names a conversation belongs to it. Any other reply belongs to the conversation of the message it
replies to; a reply to an unknown message starts a conversation with that message's id. Reply chains are followed by
doubling: each round looks twice as far, so a thread of a thousand replies takes ten rounds. Messages that reply to
each other in a circle (the bus does not check senders' claims) each form a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import COST, LONG, TEXT, RefreshMode, Table, day, struct

KEYS = ("source", "mesh", "conversation")
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
    """Return one row per conversation."""
    kept = inputs["silver_messages"].where(~f.col(LOST)).withColumn("mesh", f.coalesce("mesh", f.lit("")))
    resolved = resolve(_links(kept))
    joined = kept.join(resolved, ["source", "mesh", "message_id"])
    summed = joined.groupBy(*KEYS).agg(
        f.count("*").alias("messages"),
        f.countDistinct("sender").alias("senders"),
        f.max("depth").alias("depth"),
        f.min("at_ns").alias("first_at_ns"),
        f.max("at_ns").alias("last_at_ns"),
        f.coalesce(f.sum("input_tokens"), f.lit(0)).cast("long").alias("input_tokens"),
        f.coalesce(f.sum("output_tokens"), f.lit(0)).cast("long").alias("output_tokens"),
        f.coalesce(f.sum(f.col("cost_usd").cast(COST)), f.lit(0)).cast(COST).alias("cost_usd"),
    )
    return summed.withColumn("day", day(f.col("first_at_ns"))).select(*SCHEMA.fieldNames())


def _links(messages: DataFrame) -> DataFrame:
    """Return for each message the known message that it replies to (`up`), or the conversation that it starts."""
    known = messages.select("source", "mesh", f.col("message_id").alias("reply_to"), f.lit(True).alias("is_known"))
    linked = messages.join(known, ["source", "mesh", "reply_to"], "left")
    continues = f.col("conversation_id").isNull() & f.col("is_known")
    return linked.select(
        "source",
        "mesh",
        "message_id",
        f.when(continues, f.col("reply_to")).alias("up"),
        f.when(continues.isNull() | ~continues, f.coalesce("conversation_id", "reply_to", "message_id")).alias(
            "conversation"
        ),
        f.when(continues, 1).otherwise(0).cast("long").alias("depth"),
    )


def resolve(links: DataFrame) -> DataFrame:
    """Follow every link to the start of its conversation; `depth` becomes the number of replies in between."""
    links = links.localCheckpoint()
    open_before, open_now = -1, links.where("up IS NOT NULL").count()
    while open_now and open_now != open_before:
        links = _jump(links).localCheckpoint()
        open_before, open_now = open_now, links.where("up IS NOT NULL").count()
    ended = f.coalesce("conversation", "message_id")
    return links.select("source", "mesh", "message_id", ended.alias("conversation"), "depth")


def _jump(links: DataFrame) -> DataFrame:
    above = links.select(
        "source",
        "mesh",
        f.col("message_id").alias("up"),
        f.col("up").alias("next_up"),
        f.col("conversation").alias("found"),
        f.col("depth").alias("further"),
    )
    moved = links.where("up IS NOT NULL").join(above, ["source", "mesh", "up"])
    return links.where("up IS NULL").unionByName(
        moved.select(
            "source",
            "mesh",
            "message_id",
            f.col("next_up").alias("up"),
            f.col("found").alias("conversation"),
            (f.col("depth") + f.col("further")).alias("depth"),
        )
    )


TABLE = Table("silver_conversations", ("silver_messages",), KEYS, SCHEMA, conversations, RefreshMode.REPLACE_ALL)
