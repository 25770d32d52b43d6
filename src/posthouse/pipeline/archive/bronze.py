"""Rows of the bronze tables straight from their files, without Spark: what looks at little should start at once.

Files are chosen by their partition and their statistics, then row groups by theirs. A file that is missing or cut off
is told, never passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.lake.bronze import DAY
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.delta import Delta, check_files
from posthouse.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are wanted; None: any."""

    epoch: str | None = None
    after_seq: int = 0
    through_seq: int | None = None
    #: UTC days, both included, as in 2026-11-15
    first_day: str | None = None
    last_day: str | None = None
    #: another condition on columns of the table
    where: pc.Expression | None = None

    def may_be_in(self, file: DataFile) -> bool:
        """Tell whether the statistics of a file leave room for such rows."""
        day = file.partition.get(DAY)
        if day is not None and ((self.first_day or day) > day or (self.last_day or day) < day):
            return False
        if file.most.get("seq", self.after_seq + 1) <= self.after_seq:
            return False
        if self.through_seq is not None and file.least.get("seq", self.through_seq) > self.through_seq:
            return False
        least, most = file.least.get("epoch"), file.most.get("epoch")
        return self.epoch is None or least is None or most is None or least <= self.epoch <= most

    def condition(self) -> pc.Expression:
        """Return the condition on rows."""
        import pyarrow.compute as pc

        found = pc.field("seq") > self.after_seq
        if self.through_seq is not None:
            found &= pc.field("seq") <= self.through_seq
        if self.epoch is not None:
            found &= pc.field("epoch") == self.epoch
        return found if self.where is None else found & self.where


class Bronze:
    """One bronze table, as its newest commit names it."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._table: Delta = lake.delta(name)
        self._files: list[DataFile] | None = None

    @property
    def files(self) -> list[DataFile]:
        """The files of the table, looked up once."""
        if self._files is None:
            self._files = self._table.files()
        return self._files

    def paths(self, choice: Choice) -> list[Path]:
        """Return the files that may hold such rows, newest seq last; each is there and whole in size."""
        chosen = [file for file in self.files if choice.may_be_in(file)]
        check_files(self._table, chosen)
        chosen.sort(key=lambda file: (file.least.get("seq", 0), file.path))
        return [self._table.path / file.path for file in chosen]

    def read(self, choice: Choice, columns: Sequence[str]) -> pa.Table:
        """Return all such rows."""
        import pyarrow as pa

        parts = list(self.batches(choice, columns))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def batches(self, choice: Choice, columns: Sequence[str], *, newest_first: bool = False) -> Iterator[pa.Table]:
        """Yield such rows file by file; in the order of their oldest row, or the other way round."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = self.paths(choice)
        condition = choice.condition()
        for path in reversed(paths) if newest_first else paths:
            try:
                yield pq.read_table(path, columns=list(columns), filters=condition, partitioning=None)
            except (pa.ArrowException, OSError) as failure:
                reason = f"{path.name}: {str(failure).partition(chr(10))[0]}"
                raise error("lake_damaged", table=self._table.name, reason=reason) from failure

    def log_paths(self) -> list[Path]:
        """Return the files of the table's log."""
        log = self._table.path / "_delta_log"
        return [*sorted(path for path in log.iterdir() if path.is_file()), log, self._table.path]

    def rows(self, choice: Choice, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all such rows as plain values."""
        found: list[dict[str, Any]] = self.read(choice, columns).to_pylist()
        return found
