"""Compaction: merge small files of a table into large ones, so that a lake has few files however old it is.

A commit removes the small files and adds the merged one with the same rows; tables derived from it see no change, and
readers of the previous version keep their files until the vacuum. The files of the newest day are merged when there are
enough small ones, files of one epoch and similar size first, so that a row is rewritten a few times and not with every
merge. Files of older days, which rarely get new rows, are merged by period: by day in this month and the one before,
by month back to the start of last year, then by year. In a table without days, all files are merged like those of the
newest day. Days in the future, which a wrong clock wrote, do not make other days old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.pipeline.lake.data_file import DataFile, Periods, read_groups, write_groups
from posthouse.pipeline.lake.delta import Commit, Delta, check_files

if TYPE_CHECKING:
    import pyarrow as pa

FULL_ROWS = 1_000_000  # a file with this many rows is not merged
_GROWTH = 2  # a merge includes a file that is at most this many times as large as the smaller ones together
_EPOCHS = 3  # with this many times min_files in total, files of all epochs are merged together


def compact(table: Delta, schema: pa.Schema, today: str, min_files: int, full_rows: int = FULL_ROWS) -> int:
    """Merge the small files of a table and return by how many files it shrank; 0: there was nothing to merge."""
    files = table.files()
    merges = plan_merges(files, today, min_files, full_rows)
    if not merges:
        return 0
    removed = [file for merge in merges for file in merge]
    check_files(table, removed)
    added = [_merge(table, merge, schema) for merge in merges]
    table.commit(Commit(added, [file.path for file in removed], is_rewrite=True), schema)
    return len(removed) - len(added)


def plan_merges(
    files: Sequence[DataFile], today: str, min_files: int, full_rows: int = FULL_ROWS
) -> list[list[DataFile]]:
    """Return groups of files to merge, each in the order of days, epochs and seqs."""
    small = [file for file in files if file.rows < full_rows]
    days = {file.days[1] for file in files if file.days}
    newest = max((day for day in days if day <= today), default=max(days, default=""))
    periods = Periods.before(newest)
    growing = [file for file in small if file.days is None or file.days == (newest, newest)]
    groups: dict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in small:
        if file.days is not None and file.days != (newest, newest):
            groups[tuple(map(periods.of, file.days))].append(file)
    chosen = [_up_to(full_rows, group) for group in groups.values()]
    chosen += _of_like_size(growing, min_files, full_rows)
    return [sorted(merge, key=_order) for merge in chosen if len(merge) > 1]


def _order(file: DataFile) -> tuple[object, ...]:
    return file.days or (), str(file.min_values.get("epoch", "")), file.min_values.get("seq", 0), file.path


def _up_to(full_rows: int, small: Sequence[DataFile]) -> list[DataFile]:
    chosen: list[DataFile] = []
    total = 0
    for file in sorted(small, key=lambda file: file.rows):
        if total + file.rows <= full_rows:
            chosen.append(file)
            total += file.rows
    return chosen


def _of_like_size(growing: Sequence[DataFile], min_files: int, full_rows: int) -> list[list[DataFile]]:
    """Choose files of one epoch; if many epochs have few files each, files of all epochs."""
    epochs: dict[tuple[str, ...], list[DataFile]] = defaultdict(list)
    for file in growing:
        epochs[str(file.min_values.get("epoch", "")), str(file.max_values.get("epoch", ""))].append(file)
    groups = [group for group in epochs.values() if len(group) >= min_files]
    if not groups and len(growing) >= _EPOCHS * min_files:
        groups = [list(growing)]
    merges: list[list[DataFile]] = []
    for group in groups:
        chosen: list[DataFile] = []
        total = 0
        for file in _up_to(full_rows, group):
            if len(chosen) < 2 or file.rows <= _GROWTH * total:
                chosen.append(file)
                total += file.rows
        merges.append(chosen)
    return merges


def _merge(table: Delta, files: Sequence[DataFile], schema: pa.Schema) -> DataFile:
    """Write the rows of files into one."""
    return write_groups(table.storage, schema, (rows for file in files for rows in read_groups(table.storage, file)))
