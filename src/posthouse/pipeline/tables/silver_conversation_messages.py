"""silver_conversation_messages: the conversation of every message, and its depth in it.

A message that names a conversation belongs to it. Any other reply belongs to the conversation of the message it
replies to; a reply to an unknown message starts a conversation named by that message's id. Reply chains are followed by
doubling: each round reaches twice as far, so a thread of a thousand replies takes ten rounds. Messages that reply to
each other in a circle (the bus does not check senders' claims) are one conversation, named by the smallest id of the
circle, and have no depth. So the message that a message continues is always in the same conversation: a run that
recomputes whole conversations misses no link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import LONG, TEXT, RefreshMode, Table, struct

if TYPE_CHECKING:
    import pyarrow as pa

KEYS = ("source", "message_id")
CONVERSATION = ("source", "mesh", "conversation")
SCHEMA = struct(
    source=TEXT,
    mesh=TEXT,
    message_id=TEXT,
    conversation=TEXT,
    depth=LONG,
    sender=TEXT,
    at_ns=LONG,
    input_tokens=LONG,
    output_tokens=LONG,
    cost_usd=DoubleType(),
    day=TEXT,
)
_MESSAGE = ["source", "mesh", "message_id"]


_RESOLVED = struct(**dict.fromkeys((*_MESSAGE, "conversation"), TEXT), depth=LONG)


def conversation_messages(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per message that no restore dropped."""
    return _conversation_messages(inputs, resolve)


def few_conversation_messages(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the same rows for messages of one partition; one task follows the links, not one job per round."""

    def follow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from posthouse.pipeline.tables.follow_links import follow_batches

        return follow_batches(batches)

    return _conversation_messages(inputs, lambda links: links.coalesce(1).mapInArrow(follow, _RESOLVED).coalesce(1))


def _conversation_messages(
    inputs: Mapping[str, DataFrame], resolve_links: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    kept = inputs["silver_messages"].where(~f.col(LOST)).withColumn("mesh", f.coalesce("mesh", f.lit("")))
    return kept.join(resolve_links(_links(kept)), _MESSAGE).select(*SCHEMA.fieldNames())


def _links(messages: DataFrame) -> DataFrame:
    """Return for each message the known message that it replies to (`up`), or the conversation that it starts."""
    known = messages.select("source", "mesh", f.col("message_id").alias("reply_to"), f.lit(True).alias("is_known"))
    linked = messages.join(known, ["source", "mesh", "reply_to"], "left")
    continues = f.col("conversation_id").isNull() & f.coalesce("is_known", f.lit(False))
    starts = f.coalesce("conversation_id", "reply_to", "message_id")
    return linked.select(
        *_MESSAGE,
        f.when(continues, f.col("reply_to")).alias("up"),
        f.when(~continues, starts).alias("conversation"),
        f.when(continues, 1).otherwise(0).cast("long").alias("depth"),
        f.col("message_id").alias("least"),
    )


def resolve(links: DataFrame) -> DataFrame:
    """Follow every link to the start of its conversation; `depth` becomes the number of replies in between."""
    links = links.localCheckpoint()
    open_before, open_now, rounds = -1, links.where("up IS NOT NULL").count(), 0
    # Rounds resolve chains until only circles are left, and then go on until they reach around the largest circle.
    while open_now and (open_now != open_before or 2**rounds < open_now):
        links = _jump(links).localCheckpoint()
        open_before, open_now, rounds = open_now, links.where("up IS NOT NULL").count(), rounds + 1
    ended = links.where("up IS NULL").select(*_MESSAGE, "conversation", "depth")
    return ended.unionByName(_circles(links)) if open_now else ended


def _jump(links: DataFrame) -> DataFrame:
    above = links.select(
        "source",
        "mesh",
        f.col("message_id").alias("up"),
        f.col("up").alias("next_up"),
        f.col("conversation").alias("found"),
        f.col("depth").alias("further"),
        f.col("least").alias("least_above"),
    )
    moved = links.where("up IS NOT NULL").join(above, ["source", "mesh", "up"])
    return links.where("up IS NULL").unionByName(
        moved.select(
            *_MESSAGE,
            f.col("next_up").alias("up"),
            f.col("found").alias("conversation"),
            (f.col("depth") + f.col("further")).alias("depth"),
            f.least("least", "least_above").alias("least"),
        )
    )


def _circles(links: DataFrame) -> DataFrame:
    """Name the circles: every `up` lies on one by now, and the smallest id above it is that of the whole circle."""
    unresolved = links.where("up IS NOT NULL")
    names = unresolved.select("source", "mesh", f.col("message_id").alias("up"), f.col("least").alias("conversation"))
    joined = unresolved.drop("conversation", "depth").join(names, ["source", "mesh", "up"])
    return joined.select(*_MESSAGE, "conversation", f.lit(0).cast("long").alias("depth"))


TABLE = Table(
    "silver_conversation_messages",
    ("silver_messages",),
    KEYS,
    SCHEMA,
    conversation_messages,
    RefreshMode.FOLLOW_REPLIES,
    group=CONVERSATION,
    small_function=few_conversation_messages,
)
