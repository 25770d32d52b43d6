"""gold_cost_daily: tokens and dollars by day, agent, model and task, from the usage that messages report.

Tokens of messages that report no dollars are also counted as unpriced: a price table gives their cost when figures are
read (posthouse.pipeline.gold_reader), so that a changed price changes no table.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.declaration import COST, LONG, TEXT, RefreshMode, Table, struct

KEYS = ("day", "source", "mesh", "sender", "agent", "model", "task")
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
SCHEMA = struct(
    **dict.fromkeys(KEYS, TEXT),
    messages=LONG,
    **dict.fromkeys((*_TOKENS, *(f"unpriced_{name}" for name in _TOKENS)), LONG),
    cost_usd=COST,
)


def cost_daily(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return sums over the messages that report their usage."""
    reported = inputs["silver_messages"].where(~f.col(LOST) & f.col("model").isNotNull())
    rows = reported.withColumns({name: f.coalesce(name, f.lit("")) for name in ("mesh", "task")})
    unpriced = {name: f.when(f.col("cost_usd").isNull(), f.col(name)) for name in _TOKENS}
    sums = rows.groupBy(*KEYS).agg(
        f.count("*").alias("messages"),
        *[_total(f.col(name)).alias(name) for name in _TOKENS],
        *[_total(tokens).alias(f"unpriced_{name}") for name, tokens in unpriced.items()],
        f.coalesce(f.sum(f.col("cost_usd").cast(COST)), f.lit(0)).cast(COST).alias("cost_usd"),
    )
    return sums.select(*SCHEMA.fieldNames())


def _total(tokens: Column) -> Column:
    return f.coalesce(f.sum(tokens), f.lit(0)).cast("long")


TABLE = Table("gold_cost_daily", ("silver_messages",), KEYS, SCHEMA, cost_daily, RefreshMode.REPLACE_DAYS)
