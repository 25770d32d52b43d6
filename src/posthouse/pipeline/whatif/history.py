"""The journals of buses as a lake holds them, ready to be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from posthouse.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def bus_journal(spark: SparkSession, lake: Lake) -> DataFrame:
    """Return the records of every bus with the name of its store; what a restore has lost never happened."""
    journal = lake.table(spark, "bronze_journal")
    kept = journal.where(f.col("type").startswith("bus.") & ~f.col("lost_by_restore"))
    stores = lake.table(spark, "bronze_epochs").select("epoch", f.col("root").alias("store"))
    return kept.join(f.broadcast(stores), "epoch")
