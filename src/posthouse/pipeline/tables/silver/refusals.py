"""silver_refusals: what was refused, per code, key and minute, by relay and bus.

A record is a sum already, and one minute may have several; nothing changes later, so the facts are their own view.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.columns import LONG, TEXT, day, number, struct, text
from posthouse.pipeline.tables.table import Table, Upkeep

_MINUTE_NS = 60 * 1_000_000_000

SCHEMA = struct(epoch=TEXT, seq=LONG, at_ns=LONG, source=TEXT, code=TEXT, key=TEXT, minute=LONG, count=LONG, day=TEXT)


def refusals(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return a row for each record of refusals."""
    records = inputs["bronze_journal"].where(f.col("type").isin("refused", "bus.refused"))
    body, is_bus = f.col("body"), f.col("type") == "bus.refused"
    return records.select(
        "epoch",
        "seq",
        "at_ns",
        f.when(is_bus, "bus").otherwise("relay").alias("source"),
        f.col("ref").alias("code"),
        text(body, "key").alias("key"),
        number(body, "minute").alias("minute"),
        number(body, "count").alias("count"),
        day(number(body, "minute") * f.lit(_MINUTE_NS)).alias("day"),
    )


TABLE = Table("silver_refusals", ("bronze_journal",), ("epoch", "seq"), SCHEMA, refusals, Upkeep.FACTS)
