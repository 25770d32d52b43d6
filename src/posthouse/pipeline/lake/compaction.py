"""Compaction: merge small files of a table into large ones, so that a lake has few files however many runs it had.

A commit removes the small files and adds the merged one with the same rows; tables derived from it see no change, and
readers of the version before keep their files until the vacuum. Files of one partition and one epoch are merged, in
seq order. The newest partition is merged when enough small files have gathered, files of like size first, so that a
row is rewritten a few times and not with every merge; older partitions, which hardly grow, become one file.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.pipeline.lake.data_file import ROW_GROUP_ROWS, DataFile, describe_file, writer_options
from posthouse.pipeline.lake.delta import Commit, Delta, check_files

if TYPE_CHECKING:
    import pyarrow as pa

FULL_ROWS = 1_000_000  # a file of so many rows is not merged
_GROWTH = 2  # a merge includes a file that is at most so many times as large as the smaller ones together


def compact(table: Delta, schema: pa.Schema, partition_by: Sequence[str], min_files: int) -> int:
    """Merge the small files of a table and return the number of files that are gone; 0: there was nothing to merge."""
    files = table.files()
    merges = plan_merges(files, min_files)
    if not merges:
        return 0
    removed = [file for merge in merges for file in merge]
    check_files(table, removed)
    added = [_merge(table, merge) for merge in merges]
    commit = Commit(added, [file.path for file in removed], is_rewrite=True)
    table.commit(commit, schema, partition_by)
    return len(removed) - len(added)


def plan_merges(files: Sequence[DataFile], min_files: int) -> list[list[DataFile]]:
    """Return groups of files to merge, each in seq order."""
    groups: dict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.rows < FULL_ROWS:
            groups[_group(file)].append(file)
    newest = max((_partition(file) for file in files), default=())
    merges = []
    for small in groups.values():
        is_old = bool(newest) and _partition(small[0]) < newest
        chosen = _up_to_full(small) if is_old else _of_like_size(small, min_files)
        if len(chosen) > 1:
            merges.append(sorted(chosen, key=lambda file: (file.min_values.get("seq", 0), file.path)))
    return merges


def _partition(file: DataFile) -> tuple[str, ...]:
    return tuple(str(value) for _name, value in sorted(file.partition.items()))


def _group(file: DataFile) -> tuple[str, ...]:
    """Return what the files of a merge share; a file with several epochs is in order of the epochs already."""
    return (*_partition(file), str(file.min_values.get("epoch", "")), str(file.max_values.get("epoch", "")))


def _up_to_full(small: Sequence[DataFile]) -> list[DataFile]:
    chosen: list[DataFile] = []
    for file in sorted(small, key=lambda file: file.rows):
        if sum(each.rows for each in chosen) + file.rows <= FULL_ROWS:
            chosen.append(file)
    return chosen


def _of_like_size(small: Sequence[DataFile], min_files: int) -> list[DataFile]:
    if len(small) < min_files:
        return []
    chosen: list[DataFile] = []
    total = 0
    for file in _up_to_full(small):
        if len(chosen) < 2 or file.rows <= _GROWTH * total:
            chosen.append(file)
            total += file.rows
    return chosen


def _merge(table: Delta, files: Sequence[DataFile]) -> DataFile:
    """Write the rows of files into one, holding about one row group in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    storage = table.storage
    path = f"{files[0].path.rpartition('/')[0]}/{secrets.token_hex(16)}.parquet".lstrip("/")
    storage.prepare(path)
    filesystem = storage.filesystem()
    schema = pq.read_schema(storage.full_path(files[0].path), filesystem=filesystem).remove_metadata()
    options = writer_options(schema)
    with pq.ParquetWriter(storage.full_path(path), schema, filesystem=filesystem, **options) as writer:
        held: list[pa.Table] = []
        for file in files:
            opened = pq.ParquetFile(storage.full_path(file.path), filesystem=filesystem)
            for group in range(opened.num_row_groups):
                held.append(opened.read_row_group(group).cast(schema))
                if sum(rows.num_rows for rows in held) >= ROW_GROUP_ROWS:
                    writer.write_table(pa.concat_tables(held))
                    held = []
        if held:
            writer.write_table(pa.concat_tables(held))
    storage.sync([path])
    return describe_file(storage, path)
