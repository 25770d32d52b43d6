"""A Parquet file of a table, as a commit describes it; reading and writing such files without Spark.

Statistics come from the footer of the file, so they are exact: readers skip a file whose bounds exclude the rows they
look for. Text columns have bounds only if the values are short and the writer did not truncate them. Readers do not
see a file before a commit names it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.pipeline.lake.storage import Storage
from posthouse.pipeline.tables.bronze import DAY

if TYPE_CHECKING:
    import pyarrow as pa

FILE_ROWS = 100_000  # per file that a run may rewrite: small enough to rewrite, large enough to have few files
ROW_GROUP_ROWS = 16_384  # a lookup by key reads the row groups that hold the key
MONTH_CHARS, YEAR_CHARS = len("2026-01"), len("2026")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONG_TEXTS = ("body", "event")
_TEXT_BOUND_CHARS = 64  # longer texts (bodies, events) get no bounds: no reader searches them by range


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in a commit, with its statistics by column."""

    #: Relative to the table.
    path: str
    size_bytes: int
    rows: int
    min_values: Mapping[str, Any] = field(default_factory=dict)
    max_values: Mapping[str, Any] = field(default_factory=dict)
    null_counts: Mapping[str, int] = field(default_factory=dict)
    #: Values that all rows share and the file does not hold; only in tables that an older posthouse wrote.
    partition: Mapping[str, str] = field(default_factory=dict)

    @property
    def days(self) -> tuple[str, str] | None:
        """The first and the last UTC day of the rows; None if the table has no days."""
        if DAY in self.partition:
            return self.partition[DAY], self.partition[DAY]
        return (self.min_values[DAY], self.max_values[DAY]) if DAY in self.min_values else None

    def may_hold(self, day: str) -> bool:
        """Return False if no row is of this day."""
        return self.days is None or self.days[0] <= day <= self.days[1]

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


def write_rows(table: Storage, rows: pa.Table) -> list[DataFile]:
    """Write rows to new files of a table, at most FILE_ROWS each, and return the files; no rows give no files."""
    table.prepare()
    starts = range(0, rows.num_rows, FILE_ROWS)
    return [_write_part(table, rows.slice(start, FILE_ROWS)) for start in starts]


class Periods(NamedTuple):
    """How days share files: none of this month and the one before; older ones by month, then by year."""

    #: From this day on each day has its own files.
    first_day: str = ""
    #: Earlier days from this one on are in files by month, all others in files by year.
    first_of_months: str = ""

    @classmethod
    def before(cls, newest: str) -> Periods:
        """Return the periods for a table with this newest day; no sharing if a wrong clock wrote an impossible year."""
        if not _DAY.fullmatch(newest):
            return cls()
        year, month = int(newest[:YEAR_CHARS]), int(newest[5:7])
        month_before = f"{year:04}-{month - 1:02}" if month > 1 else f"{year - 1:04}-12"
        return cls(f"{month_before}-01", f"{year - 1:04}-01-01")

    def of(self, day: str) -> str:
        """Return the period of a day."""
        if day >= self.first_day:
            return day
        return day[:MONTH_CHARS] if day >= self.first_of_months else day[:YEAR_CHARS]


def write_periods(table: Storage, rows: pa.Table) -> list[DataFile]:
    """Write rows to new files of a table, each with the rows of one period, counted back from the newest day."""
    ordered = rows.sort_by(DAY)
    days = ordered.column(DAY).to_pylist()
    periods = Periods.before(days[-1]) if days else Periods()
    files: list[DataFile] = []
    start = 0
    for _period, same in groupby(map(periods.of, days)):
        count = sum(1 for _day in same)
        files += write_rows(table, ordered.slice(start, count))
        start += count
    return files


def _write_part(table: Storage, rows: pa.Table) -> DataFile:
    import pyarrow.parquet as pq

    path = new_path()
    table.prepare(path)
    options = writer_options(rows.schema) | {"row_group_size": ROW_GROUP_ROWS}
    with table.reached_if_remote():
        pq.write_table(rows, table.full_path(path), filesystem=table.filesystem(), **options)
    table.sync([path])
    return describe_file(table, path)


def new_path() -> str:
    """Return a path for a new file of a table."""
    return f"{secrets.token_hex(16)}.parquet"


def write_groups(table: Storage, schema: pa.Schema, parts: Iterable[pa.Table]) -> DataFile:
    """Write Arrow tables to one new file of a table, holding about one row group in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = new_path()
    table.prepare(path)
    options = writer_options(schema)
    with (
        table.reached_if_remote(),
        pq.ParquetWriter(table.full_path(path), schema, filesystem=table.filesystem(), **options) as writer,
    ):
        held: list[pa.Table] = []
        for part in parts:
            held.append(part.cast(schema))
            if sum(rows.num_rows for rows in held) >= ROW_GROUP_ROWS:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))
    table.sync([path])
    return describe_file(table, path)


def read_groups(table: Storage, file: DataFile) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group at a time."""
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(table.full_path(file.path), filesystem=table.filesystem())
    for group in range(opened.num_row_groups):
        yield with_partition(file, opened.read_row_group(group))


def with_partition(file: DataFile, rows: pa.Table) -> pa.Table:
    """Add the values that all rows of a file share and the file does not hold."""
    import pyarrow as pa

    for name, value in file.partition.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return rows


def writer_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of pyarrow's writer: no dictionary and no statistics for long texts, which rarely repeat."""
    import pyarrow as pa

    short = [field for field in schema if field.name not in _LONG_TEXTS]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [field.name for field in short if pa.types.is_string(field.type)],
        "write_statistics": [field.name for field in short],
    }


def describe_file(table: Storage, path: str) -> DataFile:
    """Return the description of a written file, from its footer."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(table.full_path(path), filesystem=table.filesystem())
    (size_bytes,) = table.sizes_bytes([path])
    return DataFile(path, size_bytes or 0, metadata.num_rows, *_statistics(metadata))


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
