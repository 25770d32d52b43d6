"""What a replay sends: messages that match a condition, with their bodies, in the order of history.

A DataFrame in, a DataFrame out. The condition speaks of the columns of silver_messages. Bodies come from the bronze
tables: the content of an event of the relay, the payload on a bus. What is sealed stays so and is left out: nobody but
its reader can say it again. What a restore has lost is left out, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from posthouse.model.errors import error
from posthouse.pipeline.replay.cursor import Cursor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: what comes out, in order
COLUMNS = ("at_ns", "epoch", "seq", "message_id", "source", "sender", "body")
INPUTS = ("silver_messages", "bronze_events", "bronze_journal")
_PLACE = ("epoch", "seq")


def select_messages(inputs: Mapping[str, DataFrame], where: str, after: Cursor) -> DataFrame:
    """Return the messages after a cursor that match; raises query_failed when the condition is not SQL."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    messages = inputs["silver_messages"].where(~f.col("lost_by_restore"))
    try:
        chosen = messages.where(where)
    except PySparkException as failure:
        raise error("query_failed", reason=str(failure).partition("\n")[0]) from failure
    chosen = chosen.where(_is_after(after)).select("at_ns", *_PLACE, "message_id", "source", "sender")
    bodies = _contents(inputs["bronze_events"]).unionByName(_payloads(inputs["bronze_journal"]))
    joined = chosen.join(bodies, list(_PLACE), "inner").where(f.col("body").isNotNull())
    return joined.select(*COLUMNS).orderBy("at_ns", *_PLACE)


def _is_after(after: Cursor) -> Column:
    from pyspark.sql import functions as f

    given = f.struct(*(f.lit(value).alias(name) for value, name in zip(after.place, ("a", "e", "s"), strict=True)))
    return f.struct(f.col("at_ns").alias("a"), f.col("epoch").alias("e"), f.col("seq").alias("s")) > given


def _contents(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    read = f.from_json("event", "struct<tags: array<array<string>>, content: string>")
    is_sealed = f.exists(f.col("read.tags"), lambda tag: f.get(tag, f.lit(0)) == "enc")
    found = events.where((f.col("kind") == 1000) & f.col("event").isNotNull()).withColumn("read", read)
    return found.where(~is_sealed).select(*_PLACE, f.col("read.content").alias("body"))


def _payloads(journal: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    found = journal.where(f.col("type") == "bus.published")
    return found.select(*_PLACE, f.get_json_object("body", "$.envelope.payload").alias("body"))
