"""One task of the copy into bronze, in a worker: read a range of a feed, write its files, compute its leaves.

Arrow goes from the store to Parquet without a detour through the JVM. Rows are in seq order; a file holds one UTC day.
Nothing is visible before the driver commits: a task that runs twice writes other files, and one pair is forgotten.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.files import fsync_dir, private_dir
from posthouse.pipeline.lake.bronze import DAY, copy_schema
from posthouse.pipeline.lake.data_file import DataFile, describe_file
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, leaves_of
from posthouse.pipeline.source.feeds import Feed
from posthouse.pipeline.source.history import Segment
from posthouse.pipeline.source.store import Access

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_NS = 86_400 * 1_000_000_000
_LONG_TEXTS = ("body", "event")  # compressed well, and never the same twice: a dictionary would only cost


@dataclass(frozen=True)
class CopyTask:
    """Rows of one epoch, from a source into files below a directory of the table."""

    access: Access
    feed: Feed
    segment: Segment
    table: Path


@dataclass(frozen=True)
class Copied:
    """What a task has written."""

    after: int
    rows: int
    files: tuple[DataFile, ...]
    leaves: tuple[bytes, ...]


def copy_range(task: CopyTask) -> Copied:
    """Copy one range and return its files and leaves."""
    files = _DayFiles(task)
    leaves: list[bytes] = []
    rows = 0
    with task.access.open() as store, closing(files):
        for after, to, table in _by_blocks(store.read(task.feed, task.segment.after, task.segment.to), task):
            leaves += leaves_of(table, after, to)
            rows += table.num_rows
            files.write(table)
    return Copied(task.segment.after, rows, files.described(), tuple(leaves))


def _by_blocks(tables: Iterator[pa.Table], task: CopyTask) -> Iterator[tuple[int, int, pa.Table]]:
    """Gather what a source yields so that it can be cut where blocks end; bounds what is held at once."""
    import pyarrow as pa

    segment = task.segment
    held: list[pa.Table] = [task.feed.schema().empty_table()]
    after = segment.after
    for table in tables:
        held.append(table)
        last = table.column("seq")[-1].as_py() if table.num_rows else after
        end = segment.after + (last - segment.after) // BLOCK_ROWS * BLOCK_ROWS
        if end > after:
            whole = pa.concat_tables(held).combine_chunks()
            cut = int(whole.column("seq").to_numpy().searchsorted(end, side="right"))
            yield after, end, whole.slice(0, cut)
            held, after = [whole.slice(cut)], end
    if after < segment.to:
        yield after, segment.to, pa.concat_tables(held).combine_chunks()


class _DayFiles:
    """The open files of a task, one for each day it meets."""

    def __init__(self, task: CopyTask) -> None:
        self._task = task
        self._schema = copy_schema(task.feed)
        self._name = f"{task.segment.epoch[:8]}-{task.segment.after + 1:019d}-{secrets.token_hex(8)}.parquet"
        self._writers: dict[int, Any] = {}
        self._paths: list[Path] = []

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their days."""
        import pyarrow as pa

        days = rows.column("at_ns").to_numpy() // _DAY_NS
        cuts = [0, *(int(cut) + 1 for cut in (days[1:] != days[:-1]).nonzero()[0]), rows.num_rows]
        for low, high in pairwise(cuts):
            if low < high:
                epochs = pa.chunked_array([pa.repeat(pa.scalar(self._task.segment.epoch), high - low)])
                self._writer(int(days[low])).write_table(rows.slice(low, high - low).add_column(0, "epoch", epochs))

    def close(self) -> None:
        """Finish every file and make it durable."""
        for writer in self._writers.values():
            writer.close()
        for path in self._paths:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            fsync_dir(path.parent)

    def described(self) -> tuple[DataFile, ...]:
        """Return the files as a commit names them."""
        return tuple(describe_file(self._task.table, path) for path in self._paths)

    def _writer(self, day: int) -> Any:
        if day not in self._writers:
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = private_dir(self._task.table / f"{DAY}={day_text(day)}") / self._name
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            columns = [field for field in self._schema if field.name != DAY]
            dictionary = [field.name for field in columns if pa.types.is_string(field.type)]
            self._writers[day] = pq.ParquetWriter(
                path,
                pa.schema(columns),
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in dictionary if name not in _LONG_TEXTS],
                write_statistics=[field.name for field in columns if field.name not in _LONG_TEXTS],
            )
            self._paths.append(path)
        return self._writers[day]


def day_text(day: int) -> str:
    """Return a day since 1970 as 2026-01-31."""
    from datetime import date, timedelta

    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
