"""Figures and alerts as rows of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.pipeline.publish.figures import STATS_KIND

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVENT = ("row_key", "body", "kind", "tags", "created_at_ns")


def figure_rows(figures: DataFrame, of: str, mesh: str, through_ns: int, days: int) -> DataFrame:
    """Return an addressable event per row: d = stats/<member>, or stats/#<topic>; its content is the row as JSON."""
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
    """Return a message per alert; how many it counts goes on changing, so it is not part of what is sent."""
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
