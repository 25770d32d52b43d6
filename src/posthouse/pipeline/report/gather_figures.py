"""Read the figures of the page from the gold tables of a lake; Spark aggregates, the driver gets tens of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from posthouse.model.clock import Clock
from posthouse.model.limits import SECOND_NS
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.report.figures import AuditSummary, Contention, Cost, Edge, Figures, Hour, Latency, Ranked
from posthouse.pipeline.report.markup import name_of
from posthouse.pipeline.tables.declaration import text
from posthouse.pipeline.tables.gold_traffic_hourly import STATES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_EDGES = 400  # per source: enough for all cells of the largest matrix
_MAX_NAMES = 10_000
_MODELS = 5  # models with their own color


def gather_figures(spark: SparkSession, lake: Lake, clock: Clock, audit: AuditSummary | None = None) -> Figures:
    """Read all figures of the page."""
    names = _names(spark, lake)
    traffic, costs = lake.table(spark, "gold_traffic_hourly"), lake.table(spark, "gold_cost_daily")
    refusals = lake.table(spark, "gold_refusals_daily")
    return Figures(
        made_at_s=clock.wall_ns() / SECOND_NS,
        hours=_hours(traffic),
        outcomes=_outcomes(traffic),
        latency=_latency(lake.table(spark, "gold_latency_hourly")),
        costs=_costs(costs),
        spenders=_ranked(costs, "sender", f.sum("cost_usd"), names, 8),
        tokens=int(_one(costs.agg(f.sum(f.col("input_tokens") + f.col("output_tokens"))))),
        refusals=_ranked(refusals, "code", f.sum("count"), names, 8),
        refused=_keys(refusals, names),
        contention=_contention(lake.table(spark, "gold_contention_hourly")),
        edges=_edges(lake.table(spark, "gold_who_talks_to_whom"), names),
        audit=audit,
    )


def _names(spark: SparkSession, lake: Lake) -> dict[str, str]:
    """Return the latest name of every member that has one, by node id."""
    journal = lake.table(spark, "bronze_journal")
    named = journal.where(f.col("type").isin("member.joined", "member.changed"))
    last = named.groupBy("ref").agg(f.max_by(text(f.col("body"), "name"), "at_ns").alias("name"))
    return {row["ref"]: row["name"] for row in last.limit(_MAX_NAMES).collect() if row["name"]}


def _hours(traffic: DataFrame) -> tuple[Hour, ...]:
    sums = traffic.groupBy("hour", "source").agg(f.sum("messages"), f.sum("deliveries")).collect()
    return tuple(sorted((Hour(_hour(row[0]), *row[1:]) for row in sums), key=lambda each: (each.hour, each.source)))


def _outcomes(traffic: DataFrame) -> tuple[Ranked, ...]:
    row = traffic.agg(*[f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in STATES]).first()
    assert row is not None
    return tuple(Ranked(name, row[name]) for name in STATES if row[name])


def _latency(latency: DataFrame) -> tuple[Latency, ...]:
    """Return a row per hour and source; meshes are weighted by their deliveries."""
    weight = f.sum("deliveries")

    def mean(column: str) -> Column:
        return (f.sum(f.col(column) * f.col("deliveries")) / weight).alias(column)

    rows = latency.groupBy("hour", "source").agg(weight, mean("p50_ms"), mean("p90_ms")).collect()
    return tuple(sorted((Latency(_hour(row[0]), *row[1:]) for row in rows), key=lambda each: (each.hour, each.source)))


def _costs(costs: DataFrame) -> tuple[Cost, ...]:
    """Return cost per day and model; all but the most expensive models are combined as `others`."""
    totals = costs.groupBy("model").agg(f.sum("cost_usd").alias("cost")).orderBy(f.desc("cost"), "model")
    largest = [row["model"] for row in totals.limit(_MODELS).collect()]
    model = f.when(f.col("model").isin(largest), f.col("model")).otherwise("others").alias("model")
    rows = costs.groupBy("day", model).agg(f.sum("cost_usd").cast("double").alias("cost")).collect()
    return tuple(sorted((Cost(*row) for row in rows), key=lambda each: (each.day, each.model)))


def _ranked(frame: DataFrame, column: str, figure: Column, names: dict[str, str], limit: int) -> tuple[Ranked, ...]:
    rows = frame.groupBy(column).agg(figure.cast("double").alias("figure")).orderBy(f.desc("figure"), column)
    return tuple(Ranked(name_of(row[0], names), row[1]) for row in rows.limit(limit).collect() if row[1])


def _keys(refusals: DataFrame, names: dict[str, str]) -> tuple[Ranked, ...]:
    sums = refusals.groupBy("code", "key").agg(f.sum("count").alias("count")).orderBy(f.desc("count"), "key", "code")
    return tuple(
        Ranked(" → ".join(name_of(part, names) for part in row["key"].split(" ")), row["count"], row["code"])
        for row in sums.limit(8).collect()
    )


def _contention(contention: DataFrame) -> tuple[Contention, ...]:
    sums = contention.groupBy("resource").agg(
        *[f.sum(name).alias(name) for name in ("grants", "waits", "wait_ms")],
        f.max("wait_ms_max").alias("wait_ms_max"),
        *[f.sum(name).alias(name) for name in ("take_overs", "held_ms")],
    )
    rows = sums.orderBy(f.desc("wait_ms"), f.desc("grants"), "resource").limit(8).collect()
    return tuple(Contention(*row) for row in rows)


def _edges(pairs: DataFrame, names: dict[str, str]) -> dict[str, tuple[Edge, ...]]:
    sums = pairs.groupBy("source", "sender", "recipient").agg(f.sum("deliveries").alias("deliveries"))
    found: dict[str, tuple[Edge, ...]] = {}
    for row in pairs.select("source").distinct().orderBy("source").collect():
        of_source = sums.where(f.col("source") == row[0]).orderBy(f.desc("deliveries"), "sender", "recipient")
        edges = of_source.select("sender", "recipient", "deliveries").limit(_MAX_EDGES).collect()
        found[row[0]] = tuple(Edge(name_of(a, names), name_of(b, names), n) for a, b, n in edges)
    return found


def _hour(hour: str) -> int:
    """Return the hours since 1970 of a text like 2026-01-31T09."""
    from datetime import UTC, datetime

    return int(datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) // 3600


def _one(frame: DataFrame) -> Any:
    row = frame.first()
    return 0 if row is None or row[0] is None else row[0]
