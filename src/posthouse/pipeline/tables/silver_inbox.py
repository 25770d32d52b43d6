"""silver_inbox: every message that a daemon stored for its node, and when it was seen."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import BOOLEAN, LONG, TEXT, RefreshMode, Table, day, number, struct, text

KEYS = ("row_id",)
FACTS_SCHEMA = struct(
    epoch=TEXT,
    seq=LONG,
    at_ns=LONG,
    fact=TEXT,
    row_id=TEXT,
    mesh=TEXT,
    sender=TEXT,
    client_message_id=TEXT,
    message_id=TEXT,
    topic=TEXT,
    size=LONG,
)
SCHEMA = struct(
    row_id=TEXT,
    mesh=TEXT,
    sender=TEXT,
    client_message_id=TEXT,
    message_id=TEXT,
    topic=TEXT,
    size=LONG,
    seen_at_ns=LONG,
    epoch=TEXT,
    seq=LONG,
    received_at_ns=LONG,
    day=TEXT,
    **{LOST: BOOLEAN},
)
_TYPES = ("inbox.received", "inbox.seen")


def inbox_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the facts of inbox rows."""
    body = f.col("body")
    records = inputs["bronze_journal"].where(f.col("type").isin(*_TYPES))
    ids = f.coalesce(f.from_json(text(body, "ids"), "array<string>"), f.array("ref"))
    rows = records.withColumn("row_id", f.explode(ids))
    return rows.withColumns(
        {name: text(body, name) for name in ("client_message_id", "message_id", "topic")}
        | {"size": number(body, "size"), "sender": f.col("actor"), "fact": f.substring_index("type", ".", -1)}
    ).select(*FACTS_SCHEMA.fieldNames())


def inbox(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per message of an inbox."""
    kept = ~f.col(LOST)
    names = ("mesh", "sender", "client_message_id", "message_id", "topic", "size")
    folded = (
        inputs["silver_inbox_facts"]
        .groupBy(*KEYS)
        .agg(
            f.min(f.struct(LOST, "seq", "at_ns", "epoch")).alias("first"),
            f.min(f.when((f.col("fact") == "seen") & kept, f.col("at_ns"))).alias("seen_at_ns"),
            *[f.max(name).alias(name) for name in names],
        )
    )
    return folded.select(
        *KEYS,
        *names,
        "seen_at_ns",
        f.col("first.epoch").alias("epoch"),
        f.col("first.seq").alias("seq"),
        f.col("first.at_ns").alias("received_at_ns"),
        day(f.col("first.at_ns")).alias("day"),
        f.col(f"first.{LOST}").alias(LOST),
    )


FACTS = Table("silver_inbox_facts", ("bronze_journal",), KEYS, FACTS_SCHEMA, inbox_facts, RefreshMode.APPEND_FACTS)
TABLE = Table("silver_inbox", (FACTS.name,), KEYS, SCHEMA, inbox, RefreshMode.FOLD_KEYS)
