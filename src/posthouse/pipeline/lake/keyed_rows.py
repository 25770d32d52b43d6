"""Find and replace rows by the hash of their key, without Spark: a run with few new rows reads and rewrites few files.

Every keyed table has a column with the hash of its key. A lookup reads that column of every file, eight bytes a row,
and then only the row groups that hold a match. Two keys may share a hash: a lookup returns the rows of both, and a
caller that replaces rows must pass the new rows of both. A file holds one day, or several once it was merged; replacing
rows keeps the days of a file together. This module does not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from posthouse.model.errors import error
from posthouse.pipeline.lake.data_file import FILE_ROWS, DataFile, write_periods, write_rows
from posthouse.pipeline.lake.delta import Delta, check_files
from posthouse.pipeline.tables.bronze import DAY

if TYPE_CHECKING:
    import pyarrow as pa


class Replacement(NamedTuple):
    """New files of a table, the files whose rows they replace, and the days of the rows that changed."""

    add: list[DataFile]
    remove: list[DataFile]
    days: frozenset[str] = frozenset()


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
    """Write files in which `rows` replace the rows with these hashes.

    A day's smallest file is rewritten with the day's new rows, so a day has few files however often rows are added.
    """
    import pyarrow.compute as pc

    removed = {file.path: file for file in _growing_files(table, _days(rows))}
    removed |= {file.path: file for file, _groups in _matching_groups(table, column, hashes)}
    return _replace(table, list(removed.values()), lambda old: pc.is_in(old.column(column), value_set=hashes), rows)


def replace_days(table: Delta, days: frozenset[str], rows: pa.Table) -> Replacement:
    """Write files in which `rows` replace the rows of these days."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(days), pa.string())
    return _replace(table, files_of_days(table, days), lambda old: pc.is_in(old.column(DAY), value_set=wanted), rows)


def files_of_days(table: Delta, days: Collection[str]) -> list[DataFile]:
    """Return the files that may hold rows of some days."""
    return [file for file in table.files() if any(map(file.may_hold, days))]


def _replace(
    table: Delta, removed: list[DataFile], is_replaced: Callable[[pa.Table], pa.Array], rows: pa.Table
) -> Replacement:
    """Rewrite each removed file without replaced rows and with its days' new rows; then write the other new rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    added: list[DataFile] = []
    changed = _days(rows)
    for file in removed:
        old = read_file(table, file, rows.schema)
        is_old = is_replaced(old)
        changed |= _days(old.filter(is_old))
        first, last = file.days or ("", "")
        is_of_file = pc.and_(pc.greater_equal(rows.column(DAY), first), pc.less_equal(rows.column(DAY), last))
        together = pa.concat_tables([old.filter(pc.invert(is_old)), rows.filter(is_of_file)])
        added += write_rows(table.storage, together.sort_by(DAY))
        rows = rows.filter(pc.invert(is_of_file))
    return Replacement([*added, *write_periods(table.storage, rows)], removed, changed)


def _days(rows: pa.Table) -> frozenset[str]:
    import pyarrow.compute as pc

    return frozenset(pc.unique(rows.column(DAY)).to_pylist())


def replace_positions(
    table: Delta, column: str, seqs: Mapping[str, Collection[int]], rows: pa.Table
) -> tuple[Replacement, pa.Array]:
    """Write files in which `rows` replace the rows with these seqs, given by epoch.

    Also return the hashes in `column` of the old and the new rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kept, hashes = [rows], [rows.column(column)]
    removed: list[DataFile] = []
    for file in table.files():
        if not any(_may_hold(file, min(found), max(found)) for found in seqs.values()):
            continue
        found = read_file(table, file, rows.schema)
        positions = zip(found.column("epoch").to_pylist(), found.column("seq").to_pylist(), strict=True)
        is_replaced = pa.array([seq in seqs.get(epoch, ()) for epoch, seq in positions], pa.bool_())
        if pc.any(is_replaced).as_py():
            kept.append(found.filter(pc.invert(is_replaced)))
            hashes.append(found.filter(is_replaced).column(column))
            removed.append(file)
    ordered = pa.concat_tables(kept).sort_by([("epoch", "ascending"), ("seq", "ascending")])
    return Replacement(write_rows(table.storage, ordered), removed), distinct(hashes)


def _may_hold(file: DataFile, first: int, last: int) -> bool:
    return bool(file.max_values.get("seq", last) >= first and file.min_values.get("seq", first) <= last)


def distinct(hashes: Iterable[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return each hash once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for each in hashes for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
    return pc.unique(pa.chunked_array(chunks, pa.int64()))


def read_file(table: Delta, file: DataFile, schema: pa.Schema, groups: list[int] | None = None) -> pa.Table:
    """Return rows of a file with these columns, all or those of some row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(table.storage.full_path(file.path), filesystem=table.storage.filesystem())
        rows = opened.read(schema.names) if groups is None else opened.read_row_groups(groups, schema.names)
    except (pa.ArrowException, OSError) as failure:
        reason = f"{file.path}: {str(failure).partition(chr(10))[0]}"
        raise error("lake_damaged", table=table.name, reason=reason) from failure
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


def _growing_files(table: Delta, days: Collection[str]) -> list[DataFile]:
    """Return the smallest file of each day, unless it is full."""
    growing = sorted((file for file in table.files() if file.rows < FILE_ROWS), key=lambda file: file.rows)
    found = (next((file for file in growing if file.may_hold(day)), None) for day in days)
    return [file for file in found if file is not None]
