"""silver_outbox: every message that a program gave to a daemon, until the relay accepted it or the daemon gave up."""

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
    client_message_id=TEXT,
    destination=TEXT,
    size=LONG,
    attempts=LONG,
    code=TEXT,
    message_id=TEXT,
    history_id=LONG,
    superseded_by=TEXT,
)
SCHEMA = struct(
    row_id=TEXT,
    mesh=TEXT,
    client_message_id=TEXT,
    destination=TEXT,
    size=LONG,
    message_id=TEXT,
    history_id=LONG,
    superseded_by=TEXT,
    sends=LONG,
    code=TEXT,
    status=TEXT,
    epoch=TEXT,
    seq=LONG,
    queued_at_ns=LONG,
    ended_at_ns=LONG,
    day=TEXT,
    **{LOST: BOOLEAN},
)
_TYPES = tuple(f"outbox.{fact}" for fact in ("queued", "inflight", "deferred", "done", "dead", "aborted"))
_ENDS = ("done", "dead", "aborted")


def outbox_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the facts of outbox rows; a record about several rows becomes several facts."""
    body = f.col("body")
    records = inputs["bronze_journal"].where(f.col("type").isin(*_TYPES))
    rows = records.withColumn(
        "row_id", f.explode(f.coalesce(f.from_json(text(body, "ids"), "array<string>"), f.array("ref")))
    )
    texts = ("client_message_id", "destination", "code", "message_id", "superseded_by")
    return rows.withColumns(
        {name: text(body, name) for name in texts}
        | {name: number(body, name) for name in ("size", "attempts", "history_id")}
        | {"fact": f.substring_index("type", ".", -1)}
    ).select(*FACTS_SCHEMA.fieldNames())


def outbox(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per message of an outbox; a dead row may still be aborted, other rows end once."""
    kept = ~f.col(LOST)
    first = f.struct(LOST, "seq", "at_ns", "epoch")
    last = f.when(f.col("fact").isin(*_ENDS) & kept, f.struct("seq", "at_ns", "fact"))
    names = ("mesh", "client_message_id", "destination", "size", "message_id", "history_id", "superseded_by")
    folded = (
        inputs["silver_outbox_facts"]
        .groupBy(*KEYS)
        .agg(
            f.min(first).alias("first"),
            f.max(last).alias("last"),
            f.sum(f.when((f.col("fact") == "inflight") & kept, 1).otherwise(0)).cast("long").alias("sends"),
            f.max_by("code", f.when(f.col("code").isNotNull(), f.col("seq"))).alias("code"),
            *[f.max(name).alias(name) for name in names],
        )
    )
    return folded.select(
        *KEYS,
        *names,
        "sends",
        "code",
        f.coalesce("last.fact", f.lit("pending")).alias("status"),
        f.col("first.epoch").alias("epoch"),
        f.col("first.seq").alias("seq"),
        f.col("first.at_ns").alias("queued_at_ns"),
        f.col("last.at_ns").alias("ended_at_ns"),
        day(f.col("first.at_ns")).alias("day"),
        f.col(f"first.{LOST}").alias(LOST),
    )


FACTS = Table("silver_outbox_facts", ("bronze_journal",), KEYS, FACTS_SCHEMA, outbox_facts, RefreshMode.APPEND_FACTS)
TABLE = Table("silver_outbox", (FACTS.name,), KEYS, SCHEMA, outbox, RefreshMode.FOLD_KEYS)
