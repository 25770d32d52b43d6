"""One Parquet file of a table, as a commit describes it.

Statistics come from the footer of the file, so they are exact: readers skip a file whose bounds exclude the rows they
look for. Text columns have bounds only if the values are short and the writer did not truncate them. Readers do not
see a file before a commit names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posthouse.pipeline.lake.storage import Storage

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
