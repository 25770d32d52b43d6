"""One Delta table of the lake: its current files, commits to it, and removal of files that no commit names.

A commit stores application versions (how far each feed is processed) in the same atomic step as the files. delta-rs
does not reject an application version that was committed before, so every commit first reads the newest state, fails if
it changed, and never retries over another writer's commit. Of two concurrent writers one fails, and no row is committed
twice. A commit names only files that this process sees at full size: a worker of a cluster may have written them to
another disk. Only the holder of the lake lock may vacuum; vacuum keeps files younger than the grace period, because
readers may still need them. If you change the columns of a table: 1. SCHEMA_VERSION, 2. docs/explain/pipeline.md,
3. how old lakes are read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posthouse.files import FILE_MODE
from posthouse.model.clock import Clock, SystemClock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, MILLISECOND_NS
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.storage import LOG, LocalStorage, Storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable


_CreateMode = Literal["error", "overwrite"]
SCHEMA_VERSION = 3  # of every table of the lake
_VERSION_KEY = "posthouse.schema_version"
_GENERATION = "posthouse:generation"
_LOG_RETENTION = "delta.logRetentionDuration"
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION_S = 30 * DAY_S
#: Opening a table replays every commit since the last checkpoint, and a run opens each table several times: with
#: Delta's default of 100 commits, most of the cost of a run came from that.
_CHECKPOINTS = {"delta.checkpointInterval": "10"}


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of one commit."""

    add: Sequence[DataFile] = ()
    #: Paths of files to remove.
    remove: Sequence[str] = ()
    #: Application id -> version.
    app_versions: Mapping[str, int] = field(default_factory=dict)
    #: Application id -> the version that this commit expects; None: no version yet.
    planned_after: Mapping[str, int | None] = field(default_factory=dict)
    #: The version of the table that this commit makes; None: any.
    version: int | None = None
    #: Extra fields of the commit's entry in the log.
    notes: Mapping[str, str] = field(default_factory=dict)
    #: True if the files hold the same rows as the removed ones.
    is_rewrite: bool = False


class Delta:
    """A Delta table: reads its newest state and commits to it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._table: DeltaTable | None = None

    @property
    def path(self) -> Path:
        """The directory of a table on a local disk."""
        assert isinstance(self.storage, LocalStorage), f"{self.storage.uri} is no directory"
        return self.storage.path

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def exists(self) -> bool:
        """True if the table has a commit."""
        return self._table is not None or self.storage.has_log()

    def version(self) -> int:
        """Return the version of the newest commit; -1 before the first."""
        return self._open().version() if self.exists else -1

    def app_version(self, application: str) -> int | None:
        """Return the last version that an application committed."""
        return self._open().transaction_version(application) if self.exists else None

    def is_current(self) -> bool:
        """Return True unless an older posthouse wrote the table."""
        return not self.exists or _schema_version(self._open().metadata().description) == SCHEMA_VERSION

    def generation(self) -> int:
        """Return how many commits changed rows; rewriting the same rows into other files does not count."""
        return self.app_version(_GENERATION) or 0

    def input_id(self) -> str:
        """Return the application id under which other tables store the generation of this one that they have read.

        It contains the id that the table got when it was created, so a table that was deleted and created again is
        another input.
        """
        return f"posthouse:input:{self.name}:{self._open().metadata().id}"

    def has_partitions(self) -> bool:
        """Return True if an older posthouse wrote the table, with a directory for each day."""
        return self.exists and bool(self._open().metadata().partition_columns)

    def has_schema(self, schema: pa.Schema) -> bool:
        """Return True if the table has these columns and the current schema version."""
        from deltalake import Schema

        found, expected = self._open().schema().fields, Schema.from_arrow(schema).fields
        are_equal = [(field.name, field.type) for field in found] == [(field.name, field.type) for field in expected]
        return self.is_current() and are_equal

    def forget(self) -> None:
        """Drop the cached state of the table, because its directory was deleted."""
        self._table = None

    def files(self) -> list[DataFile]:
        """Return the files of the newest commit, ordered by path."""
        if not self.exists:
            return []
        import pyarrow as pa

        actions = pa.table(self._open().get_add_actions(flatten=True)).to_pylist()
        return sorted((_data_file(action) for action in actions), key=lambda file: file.path)

    def to_arrow(self, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """Return rows of the newest commit without Spark; a table without a commit has none."""
        import pyarrow as pa

        if not self.exists:
            return pa.table({name: [] for name in columns})
        check_files(self, self.files())
        dataset = self._open().to_pyarrow_dataset()
        if set(columns) - set(dataset.schema.names):  # an older posthouse wrote it; a run recomputes it
            raise error("lake_outdated", path=self.storage.uri, table=self.name)
        return dataset.to_table(list(columns), filter=where)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the log entries of the last `limit` commits, by default of all in the log, oldest first."""
        return list(reversed(self._open().history(limit))) if self.exists else []

    def commit(self, commit: Commit, schema: pa.Schema) -> int:
        """Commit atomically and return the table's version; raise lake_busy if another writer has committed."""
        self.check(commit)
        with self.storage.reached_if_remote():
            if self.exists:
                self._write(commit, schema, self._properties(commit))
            else:
                self._create(commit, schema, self._properties(commit))
        return self._committed()

    def replace_files(self, files: Sequence[DataFile], schema: pa.Schema) -> int:
        """Commit files with the same rows instead of all files of the table, and drop its partitions."""
        commit = Commit(files, version=self.version() + 1, is_rewrite=True)
        self.check(commit)
        with self.storage.reached_if_remote():
            self._create(commit, schema, self._properties(commit), mode="overwrite")
        return self._committed()

    def _properties(self, commit: Commit) -> Any:
        from deltalake import CommitProperties, Transaction

        versions = dict(commit.app_versions)
        if not commit.is_rewrite:
            versions[_GENERATION] = self.generation() + 1
        transactions = [Transaction(application, version) for application, version in versions.items()]
        return CommitProperties(dict(commit.notes), 0, transactions)

    def _committed(self) -> int:
        self._table = None
        self._restrict_mode()
        return self.version()

    def configure(self, retention_s: int) -> None:
        """Set how long the log and replaced files are kept, and give the table the current schema version."""
        if not self.exists:
            return
        metadata = self._open().metadata()
        with self.storage.reached_if_remote():
            wanted = _properties_of(retention_s)
            if any(metadata.configuration.get(name) != value for name, value in wanted.items()):
                self._open().alter.set_table_properties(wanted)
            if not self.is_current():
                self._open().alter.set_table_description(f"{_VERSION_KEY}={SCHEMA_VERSION}")
        self._restrict_mode()

    def checkpoint(self) -> int:
        """Write the state of the table to one file, which stands for all older log entries; return the version."""
        with self.storage.reached_if_remote():
            self._open().create_checkpoint()
        self._restrict_mode()
        return self.version()

    def replaced_files(self) -> set[str]:
        """Return the paths of files that readers of the newest version do not need, but readers of older ones may."""
        with self.storage.reached_if_remote():
            listed = [self._open().vacuum(hours, enforce_retention_duration=False) for hours in (0, None)]
        return set(listed[0]) - set(listed[1])

    def _restrict_mode(self) -> None:
        """Set the mode of new log files, which delta-rs creates with the umask; their directory is private.

        Each version's entry is changed after its checkpoint, newest version first, until an entry is already private: a
        killed process may have left several that are not.
        """
        if not isinstance(self.storage, LocalStorage):
            return
        log = self.storage.path / LOG
        _make_private(log / "_last_checkpoint")
        for version in range(self.version(), -1, -1):
            _make_private(log / f"{version:020}.checkpoint.parquet")
            if not _make_private(log / f"{version:020}.json"):
                return

    def _refuse_missing(self, files: Sequence[DataFile]) -> None:
        """Raise lake_files_missing unless this process sees every file of a commit in full."""
        for file, size_bytes in zip(files, self.storage.sizes_bytes([file.path for file in files]), strict=True):
            if size_bytes != file.size_bytes:
                path = f"{self.storage.uri}/{file.path}"
                raise error("lake_files_missing", path=path, expected=file.size_bytes, found=size_bytes or 0)

    def check(self, commit: Commit) -> None:
        """Raise lake_files_missing or lake_busy unless files and table are as the commit expects them."""
        self._refuse_missing(commit.add)
        self._table = None
        planned = [self.app_version(application) == version for application, version in commit.planned_after.items()]
        if not all(planned) or (commit.version is not None and commit.version != self.version() + 1):
            raise error("lake_busy", path=self.storage.uri)

    def _create(self, commit: Commit, schema: pa.Schema, properties: Any, mode: _CreateMode = "error") -> None:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        self.storage.prepare()
        self.storage.child(LOG).prepare()
        try:
            create_table_with_add_actions(
                self.storage.uri,
                Schema.from_arrow(schema),
                [_add(file) for file in commit.add],
                mode=mode,
                configuration=_properties_of(DEFAULT_RETENTION_S),
                description=f"{_VERSION_KEY}={SCHEMA_VERSION}",
                storage_options=self.storage.options(),
                commit_properties=properties,
            )
        except DeltaError as failure:
            is_created = mode == "error" and self.exists  # by another run
            if not is_created and not isinstance(failure, CommitFailedError):
                raise
            raise error("lake_busy", path=self.storage.uri) from failure

    def _write(self, commit: Commit, schema: pa.Schema, properties: Any) -> None:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        files = {file.path: file for file in self.files()} if commit.remove else {}
        now_ms = SystemClock().wall_ns() // MILLISECOND_NS
        removed = [
            RemoveAction(path, not commit.is_rewrite, now_ms, files[path].size_bytes, _texts(files[path].partition))
            for path in commit.remove
        ]
        try:
            self._open().create_write_transaction(
                [*removed, *(_add(file, is_rewrite=commit.is_rewrite) for file in commit.add)],
                "append",
                Schema.from_arrow(schema),
                [],
                commit_properties=properties,
            )
        except CommitFailedError as failure:
            raise error("lake_busy", path=self.storage.uri) from failure

    def _open(self) -> DeltaTable:
        if self._table is None:
            self._table = self._load()
        return self._table

    def _load(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            with self.storage.reached_if_remote():
                table = DeltaTable(self.storage.uri, storage_options=self.storage.options())
            description = table.metadata().description
        except (DeltaError, OSError, ValueError) as failure:
            raise error("lake_damaged", table=self.name, reason=_reason(failure)) from failure
        self._refuse_newer(description)
        return table

    def _refuse_newer(self, description: str | None) -> None:
        found = _schema_version(description)
        if found == 0:
            raise error("lake_damaged", table=self.name, reason="posthouse did not create this table")
        if found > SCHEMA_VERSION:
            raise error("lake_newer", table=self.name, found=found, known=SCHEMA_VERSION)


def _make_private(path: Path) -> bool:
    """Return True if the mode of a file had to be changed; False also if there is no such file."""
    try:
        is_private = stat.S_IMODE(path.stat().st_mode) == FILE_MODE
        if not is_private:
            path.chmod(FILE_MODE)
        return not is_private
    except FileNotFoundError:
        return False


_GAP = re.compile(r"contiguous commit files, but found gap: .*filename: \"(\d+)\.json\".*filename: \"(\d+)\.json\"")


def _reason(failure: Exception) -> str:
    """Return why a log cannot be read, in one line; for a gap, delta-rs prints everything it knows about both sides."""
    text = str(failure).partition("\n")[0]
    if gap := _GAP.search(text):
        before, after = map(int, gap.groups())
        return f"its log has no entry between versions {before} and {after}"
    return text


def _schema_version(description: str | None) -> int:
    """Return the version that the description of a table names; 0 if it names none."""
    key, _, text = (description or "").partition("=")
    return int(text) if key == _VERSION_KEY and text.isdigit() else 0


def check_files(table: Delta, files: Iterable[DataFile]) -> None:
    """Raise lake_damaged if a file is missing or truncated."""
    given = list(files)
    for file, size in zip(given, table.storage.sizes_bytes([file.path for file in given]), strict=True):
        if size is None:
            raise _damaged(table, f"{file.path} is missing")
        if size != file.size_bytes:
            raise _damaged(table, f"{file.path} has {size} bytes instead of {file.size_bytes}")


def _damaged(table: Delta, reason: str) -> PosthouseError:
    return error("lake_damaged", table=table.name, reason=reason)


def _add(file: DataFile, *, is_rewrite: bool = False) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size_bytes, dict(file.partition), 0, not is_rewrite, file.stats())


def _properties_of(retention_s: int) -> dict[str, str]:
    """Return the properties of a table that keeps its log and its replaced files for a while."""
    return dict.fromkeys((_LOG_RETENTION, _FILE_RETENTION), f"interval {retention_s} seconds") | _CHECKPOINTS


def _texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    """Return partition values as text, as the log has them; delta-rs returns them in the type of their column."""
    return {name: None if value is None else str(value) for name, value in partition.items()}


def _data_file(action: Mapping[str, Any]) -> DataFile:
    parts: dict[str, dict[str, Any]] = {"partition": {}, "min": {}, "max": {}, "null_count": {}}
    for name, value in action.items():
        area, _, column = name.partition(".")
        if area in parts and column and value is not None:
            parts[area][column] = value
    return DataFile(
        os.fspath(action["path"]),
        action["size_bytes"],
        action["num_records"],
        parts["min"],
        parts["max"],
        parts["null_count"],
        parts["partition"],
    )


GRACE_S = 3_600.0  # longer than a query runs


def vacuum(table: Delta, clock: Clock, grace_s: float = GRACE_S) -> int:
    """Delete the files that neither the newest commit nor a reader of a retained version needs; return their number."""
    if not table.exists:
        return 0
    named = {file.path for file in table.files()} | table.replaced_files()
    before_ns = clock.wall_ns() - round(grace_s * 1e9)
    orphans = [file for file in table.storage.data_files() if file.path not in named and file.modified_ns < before_ns]
    for file in orphans:
        table.storage.delete_file(file.path)
    if isinstance(table.storage, LocalStorage):
        table.storage.delete_empty_directories(before_ns)
    return len(orphans)


def purge(table: Delta) -> int:
    """Delete every file that the newest commit does not name, even if readers of older versions need it."""
    named = {file.path for file in table.files()}
    unnamed = [file.path for file in table.storage.data_files() if file.path not in named]
    for path in unnamed:
        table.storage.delete_file(path)
    return len(unnamed)


def purge_log(table: Delta) -> None:
    """Delete all log entries before the newest: they contain the smallest and largest values of deleted files."""
    newest = table.checkpoint()
    log = table.storage.child(LOG)
    for file in log.data_files():
        number = file.path.partition(".")[0]
        if number.isdigit() and int(number) < newest:
            log.delete_file(file.path)
