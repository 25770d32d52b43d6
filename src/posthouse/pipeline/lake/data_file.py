"""Parquet files of a table: written by Spark into a staging directory, moved into place, synced and described.

Statistics come from the file's own footer, so they are never estimated: readers skip a file whose bounds cannot hold
what they look for. Texts are bounded only when they are short and the writer did not truncate them. Nothing here is
visible to readers before a commit names it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.files import fsync_dir, private_dir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TEXT_BOUND_CHARS = 64  # longer texts (bodies, events) get no bounds: nobody looks for them by range


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as a commit names it."""

    #: relative to the table's directory
    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str]
    least: Mapping[str, Any] = field(default_factory=dict)
    most: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def stats(self) -> str:
        """Return the statistics as Delta writes them."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": dict(self.least),
                "maxValues": dict(self.most),
                "nullCount": dict(self.nulls),
            }
        )


def describe_file(table: Path, file: Path) -> DataFile:
    """Return what the footer of a written file says of it; partitions are read from its path."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    relative = file.relative_to(table)
    least, most, nulls = _bounds(metadata)
    return DataFile(
        relative.as_posix(), file.stat().st_size, metadata.num_rows, _partition(relative), least, most, nulls
    )


def _partition(relative: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in relative.parts[:-1] if "=" in part)


def _bounds(metadata: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(metadata.num_columns):
        groups = [metadata.row_group(number).column(column) for number in range(metadata.num_row_groups)]
        found = [group.statistics for group in groups]
        name = metadata.schema.column(column).path
        if "." in name or not found or any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        bounded = [each for each in found if each.has_min_max]
        if bounded and len(bounded) == len(found) and _is_bound(bounded):
            least[name], most[name] = min(each.min for each in bounded), max(each.max for each in bounded)
    return least, most, nulls


def _is_bound(statistics: list[Any]) -> bool:
    values = [value for each in statistics for value in (each.min, each.max)]
    if all(isinstance(value, str) for value in values):
        return all(len(value) <= _TEXT_BOUND_CHARS for value in values)
    return all(type(value) in (int, float) for value in values)


def write_frame(table: Path, rows: DataFrame, partition_by: Sequence[str]) -> list[DataFile]:
    """Write rows into new files of a table and return them, none for no rows.

    Spark writes below a directory of its own; the files move from there to where they stay, so that directories of
    partitions lie right below the table: Spark would not find them deeper when it reads.
    """
    batch = secrets.token_hex(12)
    staging = private_dir(table) / f"staging-{batch}"
    rows.write.partitionBy(*partition_by).option("compression", "zstd").parquet(str(staging))
    moved = [
        _move(table, staging, path, batch) for path in sorted(staging.rglob("*.parquet")) if path.name[0] not in "._"
    ]
    shutil.rmtree(staging)
    for directory in {path.parent for path in moved} | {table}:
        fsync_dir(directory)
    return [describe_file(table, path) for path in moved]


def _move(table: Path, staging: Path, path: Path, batch: str) -> Path:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)
    directory = table / path.parent.relative_to(staging)
    if directory != table:
        private_dir(directory)
    return path.rename(directory / f"{batch}-{path.name.split('-')[1]}.parquet")
