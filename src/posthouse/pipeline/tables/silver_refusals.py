"""silver_refusals: refusals of relay and bus, per code, key and minute.

A journal record of refusals is already a sum, and one minute may have several records. A message that the bus refused
and kept as a dead letter counts as one refusal. Refusals never change; only a restore may drop them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.model.limits import MILLISECOND_NS
from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import (
    BOOLEAN,
    LONG,
    TEXT,
    RefreshMode,
    Table,
    day,
    join,
    number,
    struct,
    text,
    whole,
)

_MINUTE_MS = 60_000
KEYS = ("epoch", "seq")
FACTS_SCHEMA = struct(
    epoch=TEXT, seq=LONG, at_ns=LONG, source=TEXT, code=TEXT, key=TEXT, minute=LONG, count=LONG, day=TEXT
)
SCHEMA = join(FACTS_SCHEMA, struct(**{LOST: BOOLEAN}))


def refusal_facts(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return a row for each record of refusals."""
    records, body, type_ = inputs["bronze_journal"], f.col("body"), f.col("type")
    is_dead_letter = (type_ == "bus.dead") & text(body, "refused").isNotNull()
    minute = f.when(is_dead_letter, whole(number(body, "created_at_ms"), _MINUTE_MS)).otherwise(number(body, "minute"))
    return records.where(type_.isin("refused", "bus.refused") | is_dead_letter).select(
        "epoch",
        "seq",
        "at_ns",
        f.when(type_ == "refused", "relay").otherwise("bus").alias("source"),
        f.when(is_dead_letter, text(body, "refused")).otherwise(f.col("ref")).alias("code"),
        f.when(is_dead_letter, f.concat_ws(" ", "actor", text(body, "subject")))
        .otherwise(text(body, "key"))
        .alias("key"),
        minute.alias("minute"),
        f.when(is_dead_letter, 1).otherwise(number(body, "count")).alias("count"),
        day(minute * f.lit(_MINUTE_MS * MILLISECOND_NS)).alias("day"),
    )


def refusals(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the refusals, labelled with lost_by_restore."""
    return inputs["silver_refusals_facts"].select(*SCHEMA.fieldNames())


FACTS = Table("silver_refusals_facts", ("bronze_journal",), KEYS, FACTS_SCHEMA, refusal_facts, RefreshMode.APPEND_FACTS)
TABLE = Table("silver_refusals", (FACTS.name,), KEYS, SCHEMA, refusals, RefreshMode.FOLD_KEYS)
