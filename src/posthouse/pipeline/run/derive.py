"""Derive the declared tables from bronze, each in one commit that stores what it is derived from.

Facts store the last seq of each (epoch, feed) of bronze that they hold; so do the tables folded from them, with the
number of restores, because a restore changes which rows are lost. Other tables store the generation of each input.
A run costs what is new: it maps the new rows of bronze, folds the keys that have new facts, and replaces the days of
gold that hold a changed key. It collects a few new rows and writes them here; Spark writes a batch of millions. If a
table missed a change of its input (the run before was killed, a restore, a rebuild), it is replaced completely, also
in one commit, so that no reader finds it empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.epochs import root_epochs
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import DataFile, write_rows
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.lake.frame_files import write_frame
from posthouse.pipeline.lake.keyed_rows import find_rows, read_file, replace_rows
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter, arrow_schema
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.session.spark import small_session
from posthouse.pipeline.tables.bronze import COPIES, application_id
from posthouse.pipeline.tables.catalog import BY_NAME, TABLES, levels
from posthouse.pipeline.tables.declaration import GROUP_HASH, KEY_HASH, RefreshMode, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


RESTORES = "posthouse:restores"
SMALL_ROWS = 200_000  # rows that a run collects: some hundred MB
_WORKERS = 4  # tables derived concurrently: planning a query is mostly waiting
_MAX_DAYS = 100  # with more changed days, replacing the whole table is as fast
_ROWS_PER_FILE = 1_000_000  # of facts
#: Application id -> version.
Versions = dict[str, int]
#: Application id -> version; None: not committed yet.
CommittedVersions = Mapping[str, int | None]


@dataclass(frozen=True)
class Position:
    """What a table is derived from, and what it will be derived from after a commit."""

    before: CommittedVersions
    target: Versions

    @property
    def is_reached(self) -> bool:
        """True if there is nothing new."""
        return dict(self.before) == self.target


@dataclass(frozen=True)
class Selection:
    """The keys of a table that a run folds again, by their hashes."""

    keys: pa.Array
    #: The groups of these rows, before and now; for a table that declares a group.
    groups: pa.Array | None = None


@dataclass(frozen=True)
class Change:
    """What a run changed in a table, for the tables that derive from it."""

    #: The generation of the table before.
    after: int
    selection: Selection
    #: The partitions that hold a changed row, before or now.
    days: frozenset[str]


class Deriver:
    """Derives the tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake, on_step: OnStep, *, is_rebuild: bool = False) -> None:
        self._spark = spark
        self._lake = lake
        self._on_step = on_step
        self._is_rebuild = is_rebuild
        known = lake.epochs()
        self._epochs = [each.epoch for each in known]
        # Grows with every epoch that continues or replaces another; a new store labels no old row.
        self._restores = len(known) - len(set(root_epochs(known).values()))
        self._changes: dict[str, Change] = {}
        self._frames: dict[tuple[object, ...], DataFrame] = {}
        # Only this deriver commits, so each log is read once per commit. Tables of one level do not read each other.
        self._deltas = {name: lake.delta(name) for name in (*COPIES, *BY_NAME)}
        self._small_spark = small_session(spark)
        self._lock = threading.Lock()

    def derive(self) -> None:
        """Bring every table up to date, inputs first."""
        target = self._target_versions()
        if len(target) == 1:
            return  # bronze is empty
        with ThreadPoolExecutor(_WORKERS, "derive") as pool:
            for level in levels(TABLES):
                for done in [pool.submit(self._refresh, table, target) for table in level]:
                    done.result()

    def outdated_tables(self) -> list[str]:
        """Return the tables that `derive` would change."""
        target = self._target_versions()
        return [table.name for table in TABLES if not self._is_up_to_date(table, self._deltas[table.name], target)]

    def _is_up_to_date(self, table: Table, delta: Delta, target: Versions) -> bool:
        if not delta.exists:
            return False
        position = self._position(table, delta, target)
        if position.is_reached or not _folds_facts(table):
            return position.is_reached
        is_labelled = position.before[RESTORES] == position.target[RESTORES]
        return is_labelled and not len(self._keys_of_new_facts(table.inputs[0], position).keys)

    def _target_versions(self) -> Versions:
        target = {RESTORES: self._restores}
        for name, feed in COPIES.items():
            delta = self._deltas[name]
            for epoch in self._epochs:
                application = application_id(epoch, feed.name)
                if (version := delta.app_version(application)) is not None:
                    target[application] = version
        return target

    def _refresh(self, table: Table, target: Versions) -> None:
        delta = self._deltas[table.name]
        if reason := _unusable(table, delta, is_rebuild=self._is_rebuild):
            delta.storage.delete_all()
            delta.forget()
            self._on_step(RunStep("rebuilding", table.name, 0, {"reason": reason}))
        position = self._position(table, delta, target)
        if table.refresh is RefreshMode.APPEND_FACTS:
            self._append(table, delta, position)
        elif _folds_facts(table):
            self._fold_facts(table, delta, position)
        elif position.is_reached and not self._is_rebuild:
            self._unchanged(table)
        elif table.refresh is RefreshMode.REPLACE_DAYS:
            self._replace_days(table, delta, position)
        else:
            self._fold(table, delta, position, self._select(table, delta, position))

    def _append(self, table: Table, delta: Delta, position: Position) -> None:
        if position.is_reached and not self._is_rebuild:
            self._unchanged(table)
            return
        after = dict.fromkeys(position.target) if self._is_rebuild else position.before
        count = self._new_records(after, position.target)
        rows = table.compute({name: self._new_rows(name, after, position.target, count) for name in table.inputs})
        if count <= SMALL_ROWS:
            files = write_rows(delta.storage, _collect(table, rows))
        else:
            ordered = rows.hint("rebalance").sortWithinPartitions("epoch", "seq")
            files = write_frame(delta.storage, ordered, table.partition_by, max_rows=_ROWS_PER_FILE)
        removed = delta.files() if self._is_rebuild else []
        self._commit(table, delta, position, files, removed)

    def _fold_facts(self, table: Table, delta: Delta, position: Position) -> None:
        selection = None
        if position.before[RESTORES] == position.target[RESTORES] and not self._is_rebuild:
            selection = self._keys_of_new_facts(table.inputs[0], position)
        if selection is not None and not len(selection.keys):
            self._unchanged(table)
        else:
            self._fold(table, delta, position, selection)

    def _keys_of_new_facts(self, facts: str, position: Position) -> Selection:
        scan, feeds = BronzeScan(self._lake, facts), [feed.name for feed in COPIES.values()]
        ranges = [self._range(epoch, feeds, position.before, position.target) for epoch in self._epochs]
        return Selection(_union(scan.read(each, (KEY_HASH,)).column(KEY_HASH).cast("int64") for each in ranges))

    def _select(self, table: Table, delta: Delta, position: Position) -> Selection | None:
        """Return the keys that a change of the input affects; None: all of them."""
        (source,) = table.inputs
        change = self._change_since(source, position)
        if change is None:
            return None
        if table.refresh is RefreshMode.FOLLOW_REPLIES:
            return _find_linked(self._small_spark, self._deltas[source], delta, change.selection.keys)
        return None if change.selection.groups is None else Selection(change.selection.groups)

    def _fold(self, table: Table, delta: Delta, position: Position, selection: Selection | None) -> None:
        """Replace the rows of the selected keys, folded from all input rows of these keys; None: of all keys."""
        (source,) = table.inputs
        if selection is None or len(selection.keys) > SMALL_ROWS:
            self._replace_all(table, delta, position)
            return
        column = GROUP_HASH if BY_NAME[source].group else KEY_HASH
        found = find_rows(self._deltas[source], column, selection.keys, arrow_schema(source))
        rows = _collect(table, table.compute({source: self._small_frame(found)}))
        replaced = replace_rows(delta, KEY_HASH, selection.keys, rows)
        if selection.groups is not None:
            selection = Selection(selection.keys, _union([selection.groups, rows.column(GROUP_HASH)]))
        with self._lock:
            self._changes[table.name] = Change(delta.generation(), selection, replaced.days())
        self._commit(table, delta, position, replaced.add, replaced.remove)

    def _replace_all(self, table: Table, delta: Delta, position: Position) -> None:
        """Replace all rows; without input rows there are none, and Spark has nothing to do."""
        files: list[DataFile] = []
        if any(self._deltas[name].files() for name in table.inputs):
            rows = table.compute({name: self._lake.table(self._spark, name) for name in table.inputs})
            files = write_frame(delta.storage, rows.hint("rebalance", "day"), table.partition_by)
        self._commit(table, delta, position, files, delta.files())

    def _replace_days(self, table: Table, delta: Delta, position: Position) -> None:
        days = self._changed_days(table, position)
        if days is None:
            self._replace_all(table, delta, position)
            return
        rows = _collect(table, table.compute(self._rows_of_days(table, days)))
        files = write_rows(delta.storage, rows, table.partition_by)
        self._commit(table, delta, position, files, _of_days(delta, days))

    def _rows_of_days(self, table: Table, days: frozenset[str]) -> dict[str, DataFrame]:
        """Return the input rows of a table on some days; several tables of gold read the same."""
        files = {name: _of_days(self._deltas[name], days) for name in table.inputs}
        if sum(file.rows for found in files.values() for file in found) > SMALL_ROWS:
            return {
                name: self._lake.rows(self._spark, name, keep=lambda file: str(file.partition["day"]) in days)
                for name in files
            }
        wanted = tuple(sorted(days))
        return {name: self._cached_frame((name, *wanted), partial(self._read, name, files[name])) for name in files}

    def _read(self, name: str, files: list[DataFile]) -> pa.Table:
        import pyarrow as pa

        delta, schema = self._deltas[name], arrow_schema(name)
        return pa.concat_tables([schema.empty_table(), *(read_file(delta, file, schema) for file in files)])

    def _changed_days(self, table: Table, position: Position) -> frozenset[str] | None:
        """Return the days whose input rows changed; None: replace the whole table."""
        days: frozenset[str] = frozenset()
        for name in table.inputs:
            application = self._deltas[name].input_id()
            if position.before[application] != position.target[application]:
                change = self._change_since(name, position)
                if change is None:
                    return None
                days |= change.days
        return days if len(days) <= _MAX_DAYS else None

    def _position(self, table: Table, delta: Delta, target: Versions) -> Position:
        if table.refresh is not RefreshMode.APPEND_FACTS and not _folds_facts(table):
            inputs = [self._deltas[name] for name in table.inputs]
            target = {each.input_id(): each.generation() for each in inputs}
        return Position({application: delta.app_version(application) for application in target}, target)

    def _change_since(self, name: str, position: Position) -> Change | None:
        """Return the change of an input in this run if it is all that the table misses."""
        change = self._changes.get(name)
        known = position.before[self._deltas[name].input_id()]
        return change if change is not None and change.after == known and not self._is_rebuild else None

    def _new_rows(self, name: str, after: CommittedVersions, target: Versions, count: int) -> DataFrame:
        """Return the rows of a bronze table between two versions; bronze_epochs completely."""
        if name not in COPIES:
            return self._lake.table(self._small_spark if count <= SMALL_ROWS else self._spark, name)
        feeds = [COPIES[name].name]
        ranges = [self._range(epoch, feeds, after, target) for epoch in self._epochs]
        if count > SMALL_ROWS:
            rows = self._lake.rows(self._spark, name, keep=lambda file: any(map(_may_match(file), ranges)))
            return self._lake.labelled(self._spark, rows.where(_condition(ranges)))
        wanted = (name, *((each.epoch, each.after_seq) for each in ranges))
        return self._cached_frame(wanted, partial(self._read_bronze, name, ranges))

    def _read_bronze(self, name: str, ranges: list[RowFilter]) -> pa.Table:
        import pyarrow as pa

        scan, schema = BronzeScan(self._lake, name), pa.schema([("epoch", pa.string()), *COPIES[name].schema()])
        parts = [scan.read(each, schema.names).cast(schema) for each in ranges]
        return pa.concat_tables([schema.empty_table(), *parts])

    def _cached_frame(self, wanted: tuple[object, ...], read: Callable[[], pa.Table]) -> DataFrame:
        """Return rows that several tables of a level read, read once."""
        with self._lock:
            if wanted not in self._frames:
                self._frames[wanted] = self._small_frame(read())
            return self._frames[wanted]

    def _small_frame(self, rows: pa.Table) -> DataFrame:
        """Return collected rows as a labelled frame."""
        return self._lake.labelled(self._small_spark, _frame(self._small_spark, rows))

    def _range(self, epoch: str, feeds: list[str], after: CommittedVersions, target: Versions) -> RowFilter:
        """Return the new rows of an epoch; of the feeds that its store has, from the one that is behind."""
        applications = [application_id(epoch, feed) for feed in feeds if application_id(epoch, feed) in target]
        committed = [after[application] for application in applications]
        low = min((-1 if version is None else version for version in committed), default=-1)
        return RowFilter(epoch, low, max((target[application] for application in applications), default=-1))

    def _new_records(self, after: CommittedVersions, target: Versions) -> int:
        return sum(to - (after.get(application) or 0) for application, to in target.items() if application != RESTORES)

    def _unchanged(self, table: Table) -> None:
        self._on_step(RunStep("unchanged", table.name, 0, {}))

    def _commit(
        self, table: Table, delta: Delta, position: Position, files: list[DataFile], removed: list[DataFile]
    ) -> None:
        commit = Commit(files, [file.path for file in removed], position.target, position.before)
        delta.commit(commit, arrow_schema(table.name), table.partition_by)
        rows = sum(file.rows for file in files)
        self._on_step(RunStep("derived", table.name, rows, {"replaced_files": len(removed)}))


def _folds_facts(table: Table) -> bool:
    return table.refresh is RefreshMode.FOLD_KEYS and BY_NAME[table.inputs[0]].refresh is RefreshMode.APPEND_FACTS


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return collected rows as a frame of one partition, which Spark groups without a shuffle."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(rows, from_arrow_schema(rows.schema)).coalesce(1)


def _collect(table: Table, rows: DataFrame) -> pa.Table:
    """Return the rows of a small frame, in the types that the lake stores."""
    schema = arrow_schema(table.name)
    return rows.toArrow().select(schema.names).cast(schema)


def _unusable(table: Table, delta: Delta, *, is_rebuild: bool) -> str | None:
    """Return why no commit can bring a table up to date; a damaged table is replaced by a rebuild only."""
    try:
        if not delta.exists or delta.has_schema(arrow_schema(table.name), table.partition_by):
            return None
    except PosthouseError as failure:
        if failure.code != "lake_damaged" or not is_rebuild:
            raise
        return str(failure)
    return "another version of posthouse wrote it with other columns"


def _of_days(delta: Delta, days: frozenset[str]) -> list[DataFile]:
    return [file for file in delta.files() if str(file.partition["day"]) in days]


def _may_match(file: DataFile) -> Callable[[RowFilter], bool]:
    return lambda each: each.may_match_in(file)


def _condition(ranges: list[RowFilter]) -> Column:
    from pyspark.sql import functions as f

    condition = f.lit(False)
    for each in ranges:
        is_in_range = (f.col("seq") > f.lit(each.after_seq)) & (f.col("seq") <= f.lit(each.through_seq))
        condition = condition | ((f.col("epoch") == each.epoch) & is_in_range)
    return condition


def _find_linked(spark: SparkSession, messages: Delta, links: Delta, touched: pa.Array) -> Selection:
    """Return the touched messages and all messages of their conversations, and these conversations.

    A message touches the conversation that it was in, the one of the message that it replies to, and the one that
    earlier replies started under its id. A message continues only a message of its own conversation, so the messages
    of these conversations hold every link between them.
    """
    import pyarrow as pa
    from pyspark.sql import functions as f

    text, long = pa.string(), pa.int64()
    columns = pa.schema([(name, text) for name in ("source", "mesh", "message_id", "reply_to")])
    found = _frame(spark, find_rows(messages, KEY_HASH, touched, columns))
    hashes = found.select(
        f.xxhash64("source", "reply_to").alias("parent"),
        f.xxhash64("source", f.coalesce("mesh", f.lit("")), "message_id").alias("named"),
    )
    rows = hashes.toArrow()
    known = find_rows(links, KEY_HASH, _union([touched, rows.column("parent")]), pa.schema([(GROUP_HASH, long)]))
    groups = _union([rows.column("named"), known.column(GROUP_HASH)])
    members = find_rows(links, GROUP_HASH, groups, pa.schema([(KEY_HASH, long)]))
    return Selection(_union([touched, members.column(KEY_HASH)]), groups)


def _union(hashes: Iterable[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return each hash once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for each in hashes for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
    return pc.unique(pa.chunked_array(chunks, pa.int64()))
