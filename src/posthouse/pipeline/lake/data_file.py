"""Parquet files of a table: Spark writes them to a staging directory; they are moved into place, synced and described.

Statistics come from the footer of the file, so they are exact: readers skip a file whose bounds exclude the rows they
look for. Text columns have bounds only if the values are short and the writer did not truncate them. Readers do not
see a file before a commit names it.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.files import fsync_dir, private_dir, sync_file
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TEXT_BOUND_CHARS = 64  # longer texts (bodies, events) get no bounds: no reader searches them by range


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in a commit, with its statistics by column."""

    #: Relative to the table's directory.
    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str]
    min_values: Mapping[str, Any] = field(default_factory=dict)
    max_values: Mapping[str, Any] = field(default_factory=dict)
    null_counts: Mapping[str, int] = field(default_factory=dict)

    def stats(self) -> str:
        """Return the statistics in Delta's JSON form."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": dict(self.min_values),
                "maxValues": dict(self.max_values),
                "nullCount": dict(self.null_counts),
            }
        )


def describe_file(table: Path, file: Path) -> DataFile:
    """Describe a written file from its footer; its partition comes from its path."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    relative = file.relative_to(table)
    size_bytes = file.stat().st_size
    return DataFile(relative.as_posix(), size_bytes, metadata.num_rows, _partition(relative), *_statistics(metadata))


def _partition(relative: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in relative.parts[:-1] if "=" in part)


def _statistics(metadata: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return minima, maxima and null counts by column."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
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
            low[name], high[name] = min(each.min for each in bounded), max(each.max for each in bounded)
    return low, high, nulls


def _is_bound(statistics: list[Any]) -> bool:
    values = [value for each in statistics for value in (each.min, each.max)]
    if all(isinstance(value, str) for value in values):
        return all(len(value) <= _TEXT_BOUND_CHARS for value in values)
    return all(type(value) in (int, float) for value in values)


def write_frame(table: Path, rows: DataFrame, partition_by: Sequence[str]) -> list[DataFile]:
    """Write rows to new files of a table and return the files; without rows there are none.

    Spark writes to a staging directory. The files then move to partition directories directly below the table,
    because Spark does not find deeper ones when it reads. Raises lake_files_missing if fewer rows arrived here than
    the workers wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    batch = secrets.token_hex(12)
    staging = private_dir(table) / f"staging-{batch}"
    written = Observation()
    observed = rows.observe(written, f.count(f.lit(1)).alias("rows"))
    observed.write.partitionBy(*partition_by).option("compression", "zstd").parquet(str(staging))
    moved = [
        _move(table, staging, path, batch) for path in sorted(staging.rglob("*.parquet")) if path.name[0] not in "._"
    ]
    shutil.rmtree(staging)
    for directory in {path.parent for path in moved} | {table}:
        fsync_dir(directory)
    files = [describe_file(table, path) for path in moved]
    expected, found = int(written.get["rows"]), sum(file.rows for file in files)
    if found != expected:
        raise error("lake_files_missing", path=str(table), expected=expected, found=found)
    return files


def _move(table: Path, staging: Path, path: Path, batch: str) -> Path:
    path.chmod(0o600)
    sync_file(path)
    directory = table / path.parent.relative_to(staging)
    if directory != table:
        private_dir(directory)
    return path.rename(directory / f"{batch}-{path.name.split('-')[1]}.parquet")
