"""Comparing a lake with the stores it was made from."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.journal.digest import Record
from posthouse.model.merkle_tree import root
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import Delta
from posthouse.pipeline.lake.merkle import leaves_of
from posthouse.pipeline.tables.catalog import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def journal_rows(spark: SparkSession, lake: Lake) -> list[tuple[Any, ...]]:
    """Return what bronze_journal holds: epoch, record, lost."""
    rows = lake.table(spark, "bronze_journal").orderBy("epoch", "seq").collect()
    return [(row.epoch, Record(*row[1:8]), row.lost_by_restore) for row in rows]


def table_rows(lake: Lake, *more: str) -> dict[str, Counter[str]]:
    """Return the stored rows of every table above bronze, and of more tables, as bags.

    They are read from the files that the newest commit names.
    """
    return {name: Counter(_rows_of(lake.delta(name))) for name in (*more, *(table.name for table in TABLES))}


def _rows_of(delta: Delta) -> Iterator[str]:
    import pyarrow.parquet as pq

    storage = delta.storage
    for file in delta.files():
        for row in pq.read_table(
            storage.full_path(file.path), partitioning=None, filesystem=storage.filesystem()
        ).to_pylist():
            yield repr(sorted((row | dict(file.partition)).items()))


def check_seals(lake: Lake) -> int:
    """Compute every Merkle root of bronze_journal from the files read back; return how many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    delta = lake.delta("bronze_journal")
    tables = [pq.ParquetFile(delta.path / file.path).read() for file in delta.files()]
    count = 0
    for _version, seal in lake.sealed_commits("bronze_journal"):
        import pyarrow.compute as pc

        parts = [
            table.filter(
                (pc.field("epoch") == seal.epoch) & (pc.field("seq") > seal.after) & (pc.field("seq") <= seal.to)
            )
            for table in tables
        ]
        rows = pa.concat_tables(parts).sort_by("seq").drop_columns(["epoch", "day"])
        assert rows.num_rows == seal.rows
        assert root(leaves_of(rows, seal.after, seal.to)).hex() == seal.root
        count += 1
    return count


def check_private(lake: Path) -> None:
    """Assert that other users cannot read any file of a lake, including the logs of its tables."""
    for each in [lake, *lake.rglob("*")]:
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each
