"""Tables of a lake that only holds bronze, made on the spot by their own declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.tables.catalog import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def views_of(spark: SparkSession, lake: Lake, *names: str) -> dict[str, DataFrame]:
    """Return views by name: bronze as it is, silver made of it."""
    found = {name: lake.table(spark, name) for name in ("bronze_journal", "bronze_events", "bronze_epochs")}
    for name in names:
        _make(spark, lake, name, found)
    return found


def _make(spark: SparkSession, lake: Lake, name: str, found: dict[str, DataFrame]) -> None:
    if name not in found:
        for needed in BY_NAME[name].inputs:
            _make(spark, lake, needed, found)
        found[name] = lake.labelled(spark, BY_NAME[name].compute(found))
