"""Rows of a table found by the hash of their key, without Spark: a run with few new rows reads and rewrites few files.

Every keyed table has a column with the hash of its key. A lookup reads that column of every file, eight bytes a row,
and then only the row groups that hold a match. Two keys may share a hash: a lookup returns the rows of both, and a
replacement gets the new rows of both. This module does not commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from posthouse.model.errors import error
from posthouse.pipeline.lake.data_file import FILE_ROWS, DataFile, write_rows
from posthouse.pipeline.lake.delta import Delta, check_files

if TYPE_CHECKING:
    import pyarrow as pa


class Replacement(NamedTuple):
    """New files of a table, and the files whose rows they replace."""

    add: list[DataFile]
    remove: list[DataFile]

    def days(self) -> frozenset[str]:
        """Return the partitions in which a file was added or removed."""
        return frozenset(str(file.partition["day"]) for file in (*self.add, *self.remove))


def find_rows(table: Delta, column: str, hashes: pa.Array, schema: pa.Schema) -> pa.Table:
    """Return the rows whose `column` is one of the hashes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = [schema.empty_table()]
    searched = schema if column in schema.names else schema.append(pa.field(column, pa.int64()))
    for file, groups in _matching_groups(table, column, hashes):
        rows = read_file(table, file, searched, groups)
        found.append(rows.filter(pc.is_in(rows.column(column), value_set=hashes)).select(schema.names))
    return pa.concat_tables(found)


def replace_rows(table: Delta, column: str, hashes: pa.Array, rows: pa.Table) -> Replacement:
    """Write the files of a table in which `rows` replace those with these hashes.

    A day's smallest file is written again with the day's new rows, so a day has few files however often it grows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    removed = {file.path: file for file, _groups in _matching_groups(table, column, hashes)}
    for file in _growing_files(table, set(pc.unique(rows.column("day")).to_pylist())):
        removed[file.path] = file
    kept = [read_file(table, file, rows.schema) for file in removed.values()]
    kept = [part.filter(pc.invert(pc.is_in(part.column(column), value_set=hashes))) for part in kept]
    return Replacement(write_rows(table.storage, pa.concat_tables([*kept, rows]), ("day",)), list(removed.values()))


def read_file(table: Delta, file: DataFile, schema: pa.Schema, groups: list[int] | None = None) -> pa.Table:
    """Return rows of a file with these columns, all or those of some row groups; the path has the partition's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [name for name in schema.names if name not in file.partition]
    try:
        opened = pq.ParquetFile(table.storage.full_path(file.path), filesystem=table.storage.filesystem())
        rows = opened.read(columns) if groups is None else opened.read_row_groups(groups, columns)
    except (pa.ArrowException, OSError) as failure:
        reason = f"{file.path}: {str(failure).partition(chr(10))[0]}"
        raise error("lake_damaged", table=table.name, reason=reason) from failure
    for name, value in file.partition.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
    return rows.select(schema.names).cast(schema)


def _matching_groups(table: Delta, column: str, hashes: pa.Array) -> list[tuple[DataFile, list[int]]]:
    """Return the files with a match, and the row groups that hold one."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    files = table.files()
    check_files(table, files)
    found: list[tuple[DataFile, list[int]]] = []
    for file in files if len(hashes) else ():
        opened = pq.ParquetFile(table.storage.full_path(file.path), filesystem=table.storage.filesystem())
        groups = [
            number
            for number in range(opened.num_row_groups)
            if pc.any(pc.is_in(opened.read_row_group(number, [column]).column(column), value_set=hashes)).as_py()
        ]
        if groups:
            found.append((file, groups))
    return found


def _growing_files(table: Delta, days: set[str]) -> list[DataFile]:
    """Return the smallest file of each day, unless it is full."""
    smallest: dict[str, DataFile] = {}
    for file in table.files():
        day = str(file.partition["day"])
        if day in days and file.rows < FILE_ROWS and (day not in smallest or file.rows < smallest[day].rows):
            smallest[day] = file
    return list(smallest.values())
