"""Check derived tables: compute silver and gold from bronze again, in a scratch directory, and compare the rows.

Seals cover bronze only; a changed row of silver or gold, or a defect of an incremental run, shows here. The scratch
lake reads the bronze tables of the lake and writes its own tables to a private temporary directory, so the lake is not
changed. The lake must be up to date with its bronze tables, or every new record would look like a difference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.model.errors import error
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import Delta
from posthouse.pipeline.run.copy_feeds import ignore_step
from posthouse.pipeline.run.derive import Deriver
from posthouse.pipeline.tables.bronze import COPIES, EPOCHS_TABLE, LOST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from posthouse.pipeline.tables.declaration import Table

_SHOWN = 20  # differences of a table that become findings of their own


class ScratchLake(Lake):
    """A lake with the bronze tables of another one."""

    def __init__(self, path: Path, original: Lake) -> None:
        super().__init__(path)
        self._original = original

    def delta(self, name: str) -> Delta:
        return self._original.delta(name) if name in (*COPIES, EPOCHS_TABLE) else super().delta(name)


def check_derived(spark: SparkSession, lake: Lake) -> tuple[list[Finding], int]:
    """Return a finding for each row that is not what bronze gives, and the number of tables compared."""
    from posthouse.pipeline.tables.catalog import TABLES

    _refuse_outdated(spark, lake)
    with tempfile.TemporaryDirectory(prefix="posthouse-derived-") as folder:
        scratch = ScratchLake(Path(folder), lake)
        Deriver(spark, scratch, ignore_step).derive()
        findings = [finding for table in TABLES for finding in _compare(spark, lake, scratch, table)]
    return findings, len(TABLES)


def _refuse_outdated(spark: SparkSession, lake: Lake) -> None:
    if outdated := Deriver(spark, lake, ignore_step).outdated_tables():
        raise error("lake_outdated", path=lake.location, table=outdated[0])


def _compare(spark: SparkSession, lake: Lake, scratch: Lake, table: Table) -> list[Finding]:
    columns = [field.name for field in table.schema.fields if field.name != LOST]
    stored = lake.rows(spark, table.name, columns)
    expected = scratch.rows(spark, table.name, columns)
    return [
        *_findings(table, stored.exceptAll(expected), "bronze does not give the row"),
        *_findings(table, expected.exceptAll(stored), "the table lacks the row"),
    ]


def _findings(table: Table, rows: DataFrame, words: str) -> list[Finding]:
    return [_finding(table, row, words) for row in rows.limit(_SHOWN).collect()]


def _finding(table: Table, row: Row, words: str) -> Finding:
    values = row.asDict()
    shown = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    ref = " ".join(str(values[name]) for name in table.keys if values.get(name) is not None)
    return Finding("derived_differs", "lake", str(values.get("epoch") or ""), ref, 0, f"{table.name}: {words} {shown}")
