"""Tables of a lake that only holds bronze, made on the spot by their own declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.tables.catalog import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def views_of(spark: SparkSession, lake: Lake, *names: str) -> dict[str, DataFrame]:
    """Return views by name: bronze as it is, silver made of it."""
    found = {name: lake.table(spark, name) for name in ("bronze_journal", "bronze_events")}
    for name in names:
        if name not in found:
            table = BY_NAME[name]
            found[name] = table.view(lake.labelled(spark, table.function(found)))
    return found
