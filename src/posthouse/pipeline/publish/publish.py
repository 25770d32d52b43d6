"""Giving figures and alerts back through the sink.

How far the lake goes is the time of the figures: run twice on the same lake, the same events are sent, and the relay
has them. An alert has a key and a text that do not change while it lasts, so it arrives once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.model.errors import error
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.publish.alerts import Alarm, find_alerts
from posthouse.pipeline.publish.figures import member_figures, recent, topic_figures
from posthouse.pipeline.publish.rows import alert_rows, figure_rows
from posthouse.pipeline.sink import SinkOptions
from posthouse.pipeline.source.source import register_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Published(NamedTuple):
    """What was given back."""

    members: int
    topics: int
    alerts: list[dict[str, Any]]


def through_of(lake: Lake) -> int:
    """Return the time of the newest record in the lake, 0 when it is empty; a lake that grows has a later one."""
    return max((int(file.most["at_ns"]) for file in lake.delta("bronze_journal").files()), default=0)


def publish(
    spark: SparkSession,
    inputs: Mapping[str, DataFrame],
    options: SinkOptions,
    *,
    through_ns: int,
    days: int,
    alarm: Alarm,
    alerts_to: str | None,
) -> Published:
    """Publish the figures of a mesh, and its alerts when a topic is named for them."""
    register_source(spark)
    chosen = {name: frame.cache() for name, frame in recent(inputs, options.mesh, through_ns, days).items()}
    try:
        members = figure_rows(member_figures(chosen), "member", options.mesh, through_ns, days)
        topics = figure_rows(topic_figures(chosen), "topic", options.mesh, through_ns, days)
        alerts = find_alerts(chosen, through_ns, alarm).cache()
        counts = (_write(members, options, "stats"), _write(topics, options, "stats"))
        if alerts_to is not None:
            _write(alert_rows(alerts, alerts_to.removeprefix("#"), options.mesh), options, "alerts")
        return Published(*counts, [row.asDict() for row in alerts.orderBy("alert", "member", "since").collect()])
    finally:
        for frame in chosen.values():
            frame.unpersist()


def _write(rows: DataFrame, options: SinkOptions, part: str) -> int:
    """Send rows, and return how many there were."""
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
    except PySparkException as failure:  # what the sink raised, told by another process
        lines = [line for line in str(failure).splitlines() if "posthouse.model.errors" in line]
        reason = lines[-1].partition(": ")[2] if lines else str(failure).partition("\n")[0]
        raise error("sink_failed", reason=reason) from failure
