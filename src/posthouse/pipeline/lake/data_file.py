"""One Parquet file of a table, as a commit describes it, and small files that the driver writes.

Statistics come from the footer of the file, so they are exact: readers skip a file whose bounds exclude the rows they
look for. Text columns have bounds only if the values are short and the writer did not truncate them. Readers do not
see a file before a commit names it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posthouse.pipeline.lake.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

FILE_ROWS = 100_000  # of a table that a run rewrites by key: small enough to rewrite, large enough to be few
ROW_GROUP_ROWS = 16_384  # a lookup by key reads the row groups that hold the key
_LONG_TEXTS = ("body", "event")
_TEXT_BOUND_CHARS = 64  # longer texts (bodies, events) get no bounds: no reader searches them by range


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in a commit, with its statistics by column."""

    #: Relative to the table.
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


def write_rows(table: Storage, rows: pa.Table, partition_by: Sequence[str] = ()) -> list[DataFile]:
    """Write rows to new files of a table, at most FILE_ROWS each, and return the files; without rows there are none."""
    import pyarrow.compute as pc

    table.prepare()
    if not partition_by:
        return _write_parts(table, "", rows)
    (name,) = partition_by
    ordered = rows.sort_by(name)
    files: list[DataFile] = []
    start = 0
    for counted in pc.value_counts(ordered.column(name)).to_pylist():
        part = ordered.slice(start, counted["counts"]).drop_columns([name])
        files += _write_parts(table, f"{name}={counted['values']}/", part)
        start += counted["counts"]
    return files


def _write_parts(table: Storage, folder: str, rows: pa.Table) -> list[DataFile]:
    starts = range(0, rows.num_rows, FILE_ROWS)
    return [_write_part(table, folder, rows.slice(start, FILE_ROWS)) for start in starts]


def _write_part(table: Storage, folder: str, rows: pa.Table) -> DataFile:
    import pyarrow.parquet as pq

    path = f"{folder}{secrets.token_hex(16)}.parquet"
    table.prepare(path)
    options = writer_options(rows.schema)
    pq.write_table(rows, table.full_path(path), filesystem=table.filesystem(), row_group_size=ROW_GROUP_ROWS, **options)
    table.sync([path])
    return describe_file(table, path)


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of pyarrow's writer: no dictionary and no statistics for texts that rarely repeat."""
    import pyarrow as pa

    short = [field for field in schema if field.name not in _LONG_TEXTS]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [field.name for field in short if pa.types.is_string(field.type)],
        "write_statistics": [field.name for field in short],
    }


def describe_file(table: Storage, path: str) -> DataFile:
    """Describe a written file from its footer; its partition comes from its path."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(table.full_path(path), filesystem=table.filesystem())
    (size_bytes,) = table.sizes_bytes([path])
    return DataFile(path, size_bytes or 0, metadata.num_rows, _partition(path), *_statistics(metadata))


def _partition(path: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)


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
