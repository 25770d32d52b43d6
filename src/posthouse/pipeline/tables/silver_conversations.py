"""silver_conversations: messages that belong together, by the conversation they name or by what they reply to.

A message that names a conversation begins there; any other goes where the message goes that it replies to; a reply to
a message nobody has seen begins a conversation of that message's name. Chains are followed by doubling: each round
looks twice as far, so a thread of a thousand replies takes ten rounds. Replies in a circle (the bus believes what
senders say) are conversations of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType

from posthouse.pipeline.tables.declaration import LONG, LOST, TEXT, Table, Upkeep, day, struct

KEYS = ("source", "mesh", "conversation")
COST = DecimalType(28, 9)
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
    placed = resolve(_links(kept))
    joined = kept.join(placed, ["source", "mesh", "message_id"])
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
    """Return for each message where it goes on (`up`), or the conversation that it begins."""
    known = messages.select("source", "mesh", f.col("message_id").alias("reply_to"), f.lit(True).alias("is_known"))
    linked = messages.join(known, ["source", "mesh", "reply_to"], "left")
    goes_on = f.col("conversation_id").isNull() & f.col("is_known")
    return linked.select(
        "source",
        "mesh",
        "message_id",
        f.when(goes_on, f.col("reply_to")).alias("up"),
        f.when(goes_on.isNull() | ~goes_on, f.coalesce("conversation_id", "reply_to", "message_id")).alias(
            "conversation"
        ),
        f.when(goes_on, 1).otherwise(0).cast("long").alias("depth"),
    )


def resolve(links: DataFrame) -> DataFrame:
    """Follow every link to its end; `depth` becomes the number of replies in between."""
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


TABLE = Table("silver_conversations", ("silver_messages",), KEYS, SCHEMA, conversations, Upkeep.WHOLE)
