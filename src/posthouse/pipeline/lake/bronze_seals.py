"""bronze_seals: the seals of all commits to bronze_journal and bronze_events, kept here because table logs may expire.

A run writes the seal first and then the commit, which carries it as a note, so there is no commit without a seal. A
run that dies in between leaves a seal without a commit: readers ignore it, because no such version exists, and the
next run deletes it. `reconcile` compares the newest seals with the notes that the logs still have. It also fills the
table of a lake whose seals were only in the logs. Lakes that no run has migrated yet are read from their logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from posthouse.pipeline.lake.data_file import DataFile, write_rows
from posthouse.pipeline.lake.delta import Commit, Delta, check_files
from posthouse.pipeline.lake.merkle import NOTE, Seal
from posthouse.pipeline.lake.storage import Storage
from posthouse.pipeline.tables.bronze import SEALS_TABLE, seals_schema

if TYPE_CHECKING:
    import pyarrow.compute as pc


_LAST = 64  # versions that a run looks back for a seal: the commits between two seals merge or rewrite files


class SealedCommit(NamedTuple):
    """A commit of a bronze table: its version, and the seal of its rows."""

    version: int
    seal: Seal


class SealTable:
    """The seals of one lake."""

    def __init__(self, lake: Storage) -> None:
        self._lake = lake
        self._delta = Delta(lake.child(SEALS_TABLE))

    def commits(self, table: str, after_version: int = -1) -> list[SealedCommit]:
        """Return the sealed commits of a bronze table after a version, oldest first."""
        import pyarrow.compute as pc

        bronze = Delta(self._lake.child(table))
        if not self._delta.exists:
            return [each for each in _noted(bronze) if each.version > after_version]
        is_wanted = (pc.field("bronze_table") == table) & (pc.field("commit_version") > after_version)
        is_wanted &= pc.field("commit_version") <= bronze.version()
        rows = [each for file in self._delta.files() for _table, each in self._read(file, is_wanted)]
        return sorted(rows, key=lambda each: each.version)

    def newest(self, table: str, epoch: str, to: int) -> Seal | None:
        """Return the seal of the commit that brought a bronze table to the seq `to` of an epoch."""
        import pyarrow.compute as pc

        if not self._delta.exists:
            found = [each.seal for each in _noted(Delta(self._lake.child(table)))]
            return next((seal for seal in reversed(found) if (seal.epoch, seal.to) == (epoch, to)), None)
        is_wanted = (pc.field("bronze_table") == table) & (pc.field("epoch") == epoch) & (pc.field("to") == to)
        rows = [each for file in self._delta.files() for _table, each in self._read(file, is_wanted)]
        return max(rows, key=lambda each: each.version).seal if rows else None

    def add(self, table: str, version: int, seal: Seal) -> None:
        """Store the seal of the commit that will make this version of a bronze table."""
        self._commit([], [(table, SealedCommit(version, seal))])

    def reconcile(self, table: str) -> int:
        """Make the seals agree with the log of a bronze table; return the number of seals added or deleted."""
        bronze = Delta(self._lake.child(table))
        version = bronze.version()
        known = self._last(table, version)
        newest = max((each.version for each in known if each.version <= version), default=-1)
        noted = {each.version: each.seal for each in _noted(bronze, version - newest + 1 if newest >= 0 else None)}
        wrong = [each for each in known if each.version > version or noted.get(each.version, each.seal) != each.seal]
        missing = [SealedCommit(*each) for each in noted.items() if SealedCommit(*each) not in known]
        if wrong or missing:
            rows = [(file, row) for file in self._delta.files() for row in self._read(file)] if wrong else []
            touched = [file for file, (name, each) in rows if name == table and each in wrong]
            kept = [row for file, row in rows if file in touched and (row[0] != table or row[1] not in wrong)]
            self._commit(touched, [*kept, *((table, each) for each in missing)])
        return len(wrong) + len(missing)

    def contradictions(self, table: str) -> list[Seal]:
        """Return the seals that differ from the notes of their commits, as far as the log still has the notes."""
        noted = {each.version: each.seal for each in _noted(Delta(self._lake.child(table)))}
        return [each.seal for each in self.commits(table) if noted.get(each.version, each.seal) != each.seal]

    def _last(self, table: str, version: int) -> list[SealedCommit]:
        """Return the newest seals of a bronze table at this version, and those above it."""
        import pyarrow.compute as pc

        for after in (version - _LAST, -1):
            is_wanted = (pc.field("bronze_table") == table) & (pc.field("commit_version") > after)
            rows = [each for file in self._delta.files() for _table, each in self._read(file, is_wanted)]
            if any(each.version <= version for each in rows):
                return rows
        return rows

    def _read(self, file: DataFile, condition: pc.Expression | None = None) -> list[tuple[str, SealedCommit]]:
        """Return the bronze table and the sealed commit of every row that meets a condition."""
        import pyarrow.parquet as pq

        check_files(self._delta, [file])
        storage = self._delta.storage
        path, filesystem = storage.full_path(file.path), storage.filesystem()
        rows = pq.read_table(path, filters=condition, partitioning=None, filesystem=filesystem).to_pylist()
        return [
            (row.pop("bronze_table"), SealedCommit(row.pop("commit_version"), msgspec.convert(row, Seal)))
            for row in rows
        ]

    def _commit(self, removed: Sequence[DataFile], rows: Sequence[tuple[str, SealedCommit]]) -> None:
        import pyarrow as pa

        values = [
            {"bronze_table": table, "commit_version": each.version, **msgspec.to_builtins(each.seal)}
            for table, each in rows
        ]
        files = write_rows(self._delta.storage, pa.Table.from_pylist(values, seals_schema()))
        self._delta.commit(Commit(files, [file.path for file in removed]), seals_schema())


def _noted(bronze: Delta, limit: int | None = None) -> list[SealedCommit]:
    """Return the seals in the last `limit` commits of a bronze table's log, oldest first; by default in all."""
    return [
        SealedCommit(commit["version"], msgspec.json.decode(commit[NOTE], type=Seal))
        for commit in bronze.history(limit)
        if NOTE in commit
    ]
