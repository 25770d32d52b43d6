"""Check derived tables: compute silver and gold from bronze again, in a scratch directory, and compare the rows.

Seals cover bronze only; a changed row of silver or gold, or a defect of an incremental run, shows up here. The scratch
lake reads the bronze tables of the lake and writes its own tables to a private temporary directory. On a cluster, whose
workers cannot read that directory, it writes to one below the lake. The tables of the lake do not change. Silver and
gold must be up to date with bronze, or every new record would look like a difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import Delta
from posthouse.pipeline.lake.keyed_rows import read_file
from posthouse.pipeline.lake.lake import arrow_schema
from posthouse.pipeline.lake.storage import SCRATCH, open_storage
from posthouse.pipeline.run import derive
from posthouse.pipeline.run.copy_feeds import ignore_step
from posthouse.pipeline.session.spark import is_on_this_machine, scratch_directory
from posthouse.pipeline.tables.bronze import COPIES, EPOCHS_TABLE, LOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.tables.declaration import Table

_SHOWN = 20  # differences of a table that become separate findings
_SURPLUS = "surplus"  # copies of a row in the lake minus copies in the recomputed table


class ScratchLake(Lake):
    """A lake with the bronze tables of another one."""

    def __init__(self, location: str, original: Lake) -> None:
        super().__init__(location)
        self._original = original

    def delta(self, name: str) -> Delta:
        return self._original.delta(name) if name in (*COPIES, EPOCHS_TABLE) else super().delta(name)


def check_derived(spark: SparkSession, lake: Lake) -> tuple[list[Finding], int]:
    """Return a finding for each row that differs from the recomputed tables, and the number of tables compared."""
    from posthouse.pipeline.tables.catalog import TABLES

    _refuse_outdated(spark, lake)
    with _scratch_lake(spark, lake) as scratch:
        derive.Deriver(spark, scratch, ignore_step).derive()
        findings = [finding for table in TABLES for finding in _compare(spark, lake, scratch, table)]
    return findings, len(TABLES)


@contextmanager
def _scratch_lake(spark: SparkSession, lake: Lake) -> Iterator[ScratchLake]:
    if is_on_this_machine(spark):
        place = open_storage(scratch_directory())
    else:
        place = lake.storage.child(f"{SCRATCH}{secrets.token_hex(8)}")
    place.prepare()
    try:
        yield ScratchLake(place.uri, lake)
    finally:
        place.delete_all()


def _refuse_outdated(spark: SparkSession, lake: Lake) -> None:
    if outdated := derive.Deriver(spark, lake, ignore_step).outdated_tables():
        raise error("lake_outdated", path=lake.location, table=outdated[0])


def _compare(spark: SparkSession, lake: Lake, scratch: Lake, table: Table) -> list[Finding]:
    """Return findings for the rows that one of the lakes holds more often than the other."""
    columns = [field.name for field in table.schema.fields if field.name != LOST]
    count = sum(file.rows for each in (lake, scratch) for file in each.delta(table.name).files())
    if count > derive.SMALL_TABLE_ROWS:
        differing = _compare_in_spark(spark, lake, scratch, table.name, columns)
    else:
        differing = _compare_here(lake, scratch, table.name, columns)
    return [_finding(table, row) for row in differing]


def _compare_in_spark(
    spark: SparkSession, lake: Lake, scratch: Lake, name: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    stored = lake.rows(spark, name, columns).withColumn(_SURPLUS, f.lit(1))
    expected = scratch.rows(spark, name, columns).withColumn(_SURPLUS, f.lit(-1))
    counted = stored.unionByName(expected).groupBy(*columns).agg(f.sum(_SURPLUS).alias(_SURPLUS))
    return [row.asDict() for row in counted.where(f.col(_SURPLUS) != 0).limit(_SHOWN).collect()]


def _compare_here(lake: Lake, scratch: Lake, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Compare without Spark: for few rows, planning the query would cost more than reading them."""
    wanted = arrow_schema(name).empty_table().select(columns).schema
    counted: dict[str, dict[str, Any]] = {}  # by text, in which NaN equals NaN
    for delta, sign in ((lake.delta(name), 1), (scratch.delta(name), -1)):
        for row in (row for file in delta.files() for row in read_file(delta, file, wanted).to_pylist()):
            counted.setdefault(repr(row), row | {_SURPLUS: 0})[_SURPLUS] += sign
    return [row for row in counted.values() if row[_SURPLUS]][:_SHOWN]


def _finding(table: Table, values: dict[str, Any]) -> Finding:
    words = "bronze does not yield the row" if values.pop(_SURPLUS) > 0 else "the table lacks the row"
    shown = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
    ref = " ".join(str(values[name]) for name in table.keys if values.get(name) is not None)
    return Finding("derived_differs", "lake", str(values.get("epoch") or ""), ref, 0, f"{table.name}: {words} {shown}")
