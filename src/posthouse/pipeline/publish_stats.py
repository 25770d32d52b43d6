"""Publish statistics of members and topics, and alerts, to the mesh.

`through_ns`, the time of the newest record in the lake, is used as the current time: the same lake always produces the
same events, and the relay recognizes a repeated event. The key of an alert is its member and the hour or delivery it is
about, never the time of its detection, so it arrives once. Times are in milliseconds; percentiles are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.pipeline.connector.data_source import register_source
from posthouse.pipeline.connector.sink_rows import SinkOptions
from posthouse.pipeline.gold_reader import GoldReader
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.tables.bronze import LOST

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: Addressable; d is stats/<node id> or stats/#<topic>.
STATS_KIND = 30_100
INPUTS = ("silver_messages", "silver_deliveries")
_MS_NS = 1_000_000.0


def recent(inputs: Mapping[str, DataFrame], mesh: str, through_ns: int, days: int) -> dict[str, DataFrame]:
    """Return the live messages and deliveries of one mesh in the last days; a moved delivery counts for its new key."""
    from pyspark.sql import functions as f

    from posthouse.pipeline.tables.silver_deliveries import MOVED

    since_ns = through_ns - days * DAY_S * SECOND_NS
    times = {"silver_messages": "at_ns", "silver_deliveries": "opened_at_ns"}
    chosen = {
        name: inputs[name].where(
            ~f.col(LOST) & (f.col("source") == "relay") & (f.col("mesh") == mesh) & (f.col(at) > since_ns)
        )
        for name, at in times.items()
    }
    return chosen | {"silver_deliveries": chosen["silver_deliveries"].where(f.col("state") != MOVED)}


def member_figures(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per member: messages sent and received, median time to confirm, median time to answer."""
    from pyspark.sql import functions as f

    messages, deliveries = inputs["silver_messages"], inputs["silver_deliveries"]
    sent = messages.groupBy(f.col("sender").alias("member")).agg(
        f.count("*").alias("sent"), f.sum("size").alias("sent_bytes"), f.max("at_ns").alias("last_sent_at_ns")
    )
    is_confirmed = f.col("state") == "confirmed"
    latency_ns = f.when(is_confirmed, f.col("ended_at_ns") - f.col("opened_at_ns"))
    received = deliveries.groupBy(f.col("reader").alias("member")).agg(
        f.count("*").alias("received"),
        _count(is_confirmed).alias("confirmed"),
        _count(f.col("state").isin("queued", "sent")).alias("waiting"),
        _count(f.col("state").isin("rejected", "dead", "expired")).alias("failed"),
        (f.percentile(latency_ns, 0.5) / _MS_NS).alias("confirm_p50_ms"),
    )
    return sent.join(received, "member", "full").join(_answers(messages), "member", "left")


def _answers(messages: DataFrame) -> DataFrame:
    """Return the number and the median time of each member's replies to other members' messages."""
    from pyspark.sql import functions as f

    asked = messages.select(
        f.col("message_id").alias("reply_to"), f.col("at_ns").alias("asked_at_ns"), f.col("sender").alias("asker")
    )
    replies = messages.where(f.col("reply_to").isNotNull()).join(asked, "reply_to")
    answer_ns = f.col("at_ns") - f.col("asked_at_ns")
    return (
        replies.where(f.col("sender") != f.col("asker"))
        .groupBy(f.col("sender").alias("member"))
        .agg(f.count("*").alias("answers"), (f.percentile(answer_ns, 0.5) / _MS_NS).alias("answer_p50_ms"))
    )


def topic_figures(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per topic: messages, bytes, senders and the time of the last message."""
    from pyspark.sql import functions as f

    posts = inputs["silver_messages"].where(f.col("destination_kind") == "topic")
    return posts.groupBy(f.col("destination").alias("topic")).agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.countDistinct("sender").alias("senders"),
        f.max("at_ns").alias("last_at_ns"),
    )


def _count(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.sum(f.when(condition, 1).otherwise(0)).cast("long")


_HOUR_S = 3_600
COLUMNS = ("alert", "member", "since", "count")


@dataclass(frozen=True, slots=True)
class AlertThresholds:
    """The values at which an alert is raised."""

    #: Messages of one member in one hour.
    flood_per_hour: int = 1_000
    #: Age of the oldest message that a member has not confirmed.
    silent_s: float = 24 * _HOUR_S
    #: Attempts of one delivery.
    attempts: int = 5


def find_alerts(inputs: Mapping[str, DataFrame], through_ns: int, thresholds: AlertThresholds) -> DataFrame:
    """Return one row per alert: alert, member, since (an hour, or a time in nanoseconds, as text) and count."""
    flood = _flood(inputs["silver_messages"], thresholds.flood_per_hour)
    silent = _silent(inputs["silver_deliveries"], through_ns - round(thresholds.silent_s * SECOND_NS))
    storm = _storm(inputs["silver_deliveries"], thresholds.attempts)
    return flood.unionByName(silent).unionByName(storm).select(*COLUMNS)


class SpentAlert(NamedTuple):
    """An alert: the spending of one day exceeded its budget."""

    alert: str
    #: The agent that spent more than its budget; "" for the whole mesh.
    member: str
    #: The UTC day.
    since: str
    #: Rounded to cents.
    dollars: float


_ALERT_TYPES = "alert string, member string, since string, count bigint"


def spent_alerts(reader: GoldReader, budget_usd: float | None, agent_budget_usd: float | None) -> list[SpentAlert]:
    """Return an alert for each day on which the mesh, or one of its agents, cost more than its budget."""
    found: list[SpentAlert] = []
    if budget_usd is not None:
        days = [row for row in reader.costs("day") if row["cost_usd"] > budget_usd]
        found += [SpentAlert("over_budget", "", row["day"], round(row["cost_usd"], 2)) for row in days]
    if agent_budget_usd is not None:
        rows = [row for row in reader.costs("agent", "day") if row["cost_usd"] > agent_budget_usd]
        found += [SpentAlert("over_budget", row["agent"], row["day"], round(row["cost_usd"], 2)) for row in rows]
    return sorted(found)


def _flood(messages: DataFrame, per_hour: int) -> DataFrame:
    from pyspark.sql import functions as f

    hourly = messages.groupBy(f.col("sender").alias("member"), f.col("hour").cast("string").alias("since"))
    counted = hourly.agg(f.count("*").alias("count")).where(f.col("count") >= per_hour)
    return counted.withColumn("alert", f.lit("flood"))


def _silent(deliveries: DataFrame, before_ns: int) -> DataFrame:
    """Return the members that have confirmed nothing since their oldest waiting message was accepted."""
    from pyspark.sql import functions as f

    is_open = f.col("state").isin("queued", "sent")
    found = deliveries.groupBy(f.col("reader").alias("member")).agg(
        f.min(f.when(is_open, f.col("opened_at_ns"))).alias("oldest_ns"),
        f.max(f.when(f.col("state") == "confirmed", f.col("ended_at_ns"))).alias("confirmed_at_ns"),
        f.sum(f.when(is_open, 1).otherwise(0)).alias("count"),
    )
    is_quiet = f.col("confirmed_at_ns").isNull() | (f.col("confirmed_at_ns") < f.col("oldest_ns"))
    silent = found.where((f.col("oldest_ns") < before_ns) & is_quiet)
    return silent.select(
        f.lit("silent_agent").alias("alert"), "member", f.col("oldest_ns").cast("string").alias("since"), "count"
    )


def _storm(deliveries: DataFrame, attempts: int) -> DataFrame:
    from pyspark.sql import functions as f

    hourly = deliveries.where(f.col("attempts") >= attempts).groupBy(
        f.col("reader").alias("member"), f.col("hour").cast("string").alias("since")
    )
    return hourly.agg(f.count("*").alias("count")).withColumn("alert", f.lit("retry_storm"))


_EVENT = ("row_key", "body", "kind", "tags", "created_at_ns")


def figure_rows(figures: DataFrame, of: str, mesh: str, through_ns: int, days: int) -> DataFrame:
    """Return an addressable event per row: d = stats/<member> or stats/#<topic>, content = the row as JSON."""
    from pyspark.sql import functions as f

    name = f.col("member") if of == "member" else f.concat(f.lit("#"), f.col("topic"))
    d = f.concat(f.lit("stats/"), name)
    period = {"mesh": f.lit(mesh), "days": f.lit(days), "through_ns": f.lit(str(through_ns))}
    content = f.to_json(f.struct(*figures.columns, *(value.alias(key) for key, value in period.items())))
    return figures.select(
        d.alias("row_key"),
        content.alias("body"),
        f.lit(STATS_KIND).cast("int").alias("kind"),
        _tags(d, mesh).alias("tags"),
        f.lit(through_ns).cast("long").alias("created_at_ns"),
    ).select(*_EVENT)


def alert_rows(alerts: DataFrame, topic: str, mesh: str) -> DataFrame:
    """Return a message per alert, without the count: it keeps changing, and the message must stay the same."""
    from pyspark.sql import functions as f

    body = f.to_json(f.struct(f.lit(mesh).alias("mesh"), "alert", "member", "since"))
    return alerts.select(
        f.concat_ws("/", "alert", "member", "since").alias("row_key"),
        body.alias("body"),
        f.lit(f"#{topic}").alias("to"),
        f.lit("now").alias("priority"),
    )


def _tags(d: Column, mesh: str) -> Column:
    from pyspark.sql import functions as f

    named = [f.array(f.lit("d"), d), f.array(f.lit("mesh"), f.lit(mesh))]
    return f.to_json(f.array(*named))


class PublishReport(NamedTuple):
    """The result of publishing."""

    members: int
    topics: int
    alerts: list[dict[str, Any]]


def through_of(lake: Lake) -> int:
    """Return the time of the newest record in the lake; 0 if it is empty."""
    return max((int(file.max_values["at_ns"]) for file in lake.delta("bronze_journal").files()), default=0)


def publish(
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    options: SinkOptions,
    *,
    through_ns: int,
    days: int,
    thresholds: AlertThresholds,
    alerts_to: str | None,
    spent: Sequence[SpentAlert] = (),
) -> PublishReport:
    """Publish the figures of a mesh, and its alerts, with those in `spent`, if `alerts_to` names a topic."""
    register_source(spark)
    chosen = {name: frame.cache() for name, frame in recent(inputs, options.mesh, through_ns, days).items()}
    try:
        members = figure_rows(member_figures(chosen), "member", options.mesh, through_ns, days)
        topics = figure_rows(topic_figures(chosen), "topic", options.mesh, through_ns, days)
        alerts = find_alerts(chosen, through_ns, thresholds)
        if spent:
            alerts = alerts.unionByName(
                spark.createDataFrame([(*each[:-1], int(each.dollars)) for each in spent], _ALERT_TYPES).select(
                    *COLUMNS
                )
            )
        alerts = alerts.cache()
        counts = (_write(members, options, "stats"), _write(topics, options, "stats"))
        if alerts_to is not None:
            _write(alert_rows(alerts, alerts_to.removeprefix("#"), options.mesh), options, "alerts")
        return PublishReport(*counts, [row.asDict() for row in alerts.orderBy("alert", "member", "since").collect()])
    finally:
        for frame in chosen.values():
            frame.unpersist()


def _write(rows: DataFrame, options: SinkOptions, part: str) -> int:
    """Send rows and return their number."""
    kept = rows.cache()
    try:
        count = kept.count()
        if count:
            run = options.as_strings() | {"run_id": f"{options.run_id}/{part}"}
            _send(kept, run)
        return count
    finally:
        kept.unpersist()


def _send(rows: DataFrame, options: Mapping[str, str]) -> None:
    from pyspark.errors import PySparkException

    try:
        rows.write.format("posthouse").options(**options).mode("append").save()
    except PySparkException as failure:  # it quotes the sink's exception from another process
        lines = [line for line in str(failure).splitlines() if PosthouseError.__module__ in line]
        reason = lines[-1].partition(": ")[2] if lines else str(failure).partition("\n")[0]
        raise error("sink_failed", reason=reason) from failure
