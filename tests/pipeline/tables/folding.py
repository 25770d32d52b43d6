"""Keeping tables up to date batch by batch, exactly as their declarations promise it, without a lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from posthouse.pipeline.tables import LOST, TABLES, Table, Upkeep
from tests.pipeline.tables.history import EPOCHS_SCHEMA, EVENTS_SCHEMA, JOURNAL_SCHEMA, History, Row

_BRONZE = {"bronze_journal": JOURNAL_SCHEMA, "bronze_events": EVENTS_SCHEMA, "bronze_epochs": EPOCHS_SCHEMA}


class Folded:
    """The tables after some batches."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stored: dict[str, list[tuple[Any, ...]]] = {table.name: [] for table in TABLES}
        self._history = History()

    def take(self, batch: History) -> None:
        """Bring every table up to date with new rows."""
        is_restored = any(epoch.parent for epoch in batch.epochs)
        self._history.epochs += batch.epochs
        fresh = self._bronze(batch)
        changed: dict[str, DataFrame] = {}
        for table in TABLES:
            if table.upkeep is Upkeep.FACTS:
                facts = table.function(fresh).select(*table.schema.fieldNames()).collect()
                self._stored[table.name] += [tuple(row) for row in facts]
                changed[table.name] = self._frame([tuple(row) for row in facts], table.schema)
            elif table.upkeep is Upkeep.WHOLE or is_restored:
                self._stored[table.name] = self._computed(table)
            else:
                self._replace_parts(table, changed)

    def rows(self, table: Table) -> list[tuple[Any, ...]]:
        """Return what is stored, in an order of its own."""
        return sorted(self._stored[table.name], key=repr)

    def view(self, table: Table) -> DataFrame:
        """Return what readers see."""
        stored = self._frame(self._stored[table.name], table.schema)
        return table.view(self._labelled(stored)) if table.upkeep is Upkeep.FACTS else stored

    def _replace_parts(self, table: Table, changed: dict[str, DataFrame]) -> None:
        assert table.part is not None
        days: set[str] = set()
        for name in table.inputs:
            source = next(each for each in TABLES if each.name == name)
            touched = self.view(source).join(changed[name].select(*source.keys).distinct(), list(source.keys), "semi")
            days |= {row[0] for row in touched.select("day").distinct().collect()}
        at = table.schema.fieldNames().index(table.part)
        kept = [row for row in self._stored[table.name] if row[at] not in days]
        self._stored[table.name] = kept + [row for row in self._computed(table) if row[at] in days]

    def _computed(self, table: Table) -> list[tuple[Any, ...]]:
        inputs = {name: self.view(next(each for each in TABLES if each.name == name)) for name in table.inputs}
        return [tuple(row) for row in table.function(inputs).select(*table.schema.fieldNames()).collect()]

    def _bronze(self, batch: History) -> dict[str, DataFrame]:
        epochs = [(each.name, each.parent, each.fork_seq, each.store, "", 0) for each in self._history.epochs]
        rows: dict[str, Sequence[tuple[Any, ...]]] = {
            "bronze_journal": _tuples(batch.journal),
            "bronze_events": _tuples(batch.events),
            "bronze_epochs": epochs,
        }
        return {
            name: self._frame(rows[name], schema)
            if name == "bronze_epochs"
            else self._labelled(self._frame(rows[name], schema))
            for name, schema in _BRONZE.items()
        }

    def _labelled(self, rows: DataFrame) -> DataFrame:
        lost = f.lit(False)
        for epoch in self._history.epochs:
            limit = self._history.limit(epoch.name)
            if limit is not None:
                lost = lost | ((f.col("epoch") == epoch.name) & (f.col("seq") > limit))
        return rows.withColumn(LOST, lost)

    def _frame(self, rows: Sequence[tuple[Any, ...]], schema: StructType | str) -> DataFrame:
        return self._spark.createDataFrame(list(rows), schema)


def cut(history: History, places: Sequence[int]) -> list[History]:
    """Return the history in batches; an epoch comes with the first batch that has a row of it."""
    batches, seen = [], set[str]()
    ends = [*sorted(places), len(history.journal)]
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        journal = history.journal[begin:end]
        at = {(row["epoch"], row["seq"]) for row in journal}
        epochs = [each for each in history.epochs if each.name in {name for name, _ in at} - seen]
        seen |= {each.name for each in epochs}
        batches.append(History(journal, [row for row in history.events if (row["epoch"], row["seq"]) in at], epochs))
    return batches


def _tuples(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]
