"""Making every table of a history at once, by nothing but its declaration: no lake, no runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.catalog import TABLES
from posthouse.pipeline.tables.declaration import RefreshMode, Table
from tests.pipeline.tables.history import EPOCHS_SCHEMA, EVENTS_SCHEMA, JOURNAL_SCHEMA, History, Row


class Made:
    """The tables of one history."""

    def __init__(self, spark: SparkSession, history: History) -> None:
        self._spark = spark
        self._history = history
        self._views = self._bronze()
        for table in TABLES:
            self._views[table.name] = self._view(table)

    def view(self, table: Table) -> DataFrame:
        """Return what readers see."""
        return self._views[table.name]

    def _view(self, table: Table) -> DataFrame:
        """Keep the rows: what is above reads them several times."""
        computed = table.compute({name: self._views[name] for name in table.inputs})
        rows = [tuple(row) for row in computed.collect()]
        stored = self._spark.createDataFrame(rows, table.stored)
        return self._labelled(stored) if table.refresh is RefreshMode.APPEND_FACTS else stored

    def _bronze(self) -> dict[str, DataFrame]:
        epochs = [(each.name, each.parent, each.fork_seq, each.store, "", 0) for each in self._history.epochs]
        return {
            "bronze_journal": self._labelled(self._frame(self._history.journal, JOURNAL_SCHEMA)),
            "bronze_events": self._labelled(self._frame(self._history.events, EVENTS_SCHEMA)),
            "bronze_epochs": self._spark.createDataFrame(epochs, EPOCHS_SCHEMA),
        }

    def _labelled(self, rows: DataFrame) -> DataFrame:
        lost = f.lit(False)
        for epoch in self._history.epochs:
            limit = self._history.limit(epoch.name)
            if limit is not None:
                lost = lost | ((f.col("epoch") == epoch.name) & (f.col("seq") > limit))
        return rows.withColumn(LOST, lost)

    def _frame(self, rows: Sequence[Row], schema: str) -> DataFrame:
        values: list[tuple[Any, ...]] = [tuple(row.values()) for row in rows]
        return self._spark.createDataFrame(values, schema)
