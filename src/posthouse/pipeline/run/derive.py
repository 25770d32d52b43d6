"""Derive the declared tables from bronze, each in one commit that stores the versions of its inputs.

Fact tables store the last seq of each (epoch, feed) of bronze that they hold; so do the tables folded from them, with
the number of restores, because a restore changes which rows are lost. Other tables store the generation of each input.
The cost of a run depends on the new rows: it maps the new rows of bronze, folds the keys that have new facts, and
replaces the days of gold that hold a changed key. The driver collects and writes up to SMALL_ROWS new rows; Spark
writes larger batches. Rows of bronze whose content was erased are mapped again, and their keys folded again. If a table
missed a change of its input (the previous run was killed, a restore, a rebuild), it is replaced completely, also in one
commit, so that no reader finds it empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.epochs import live_through, root_epochs
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import ErasureTable, erased_seqs
from posthouse.pipeline.lake.data_file import DataFile, Periods, write_periods, write_rows
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.lake.frame_files import write_frame
from posthouse.pipeline.lake.keyed_rows import (
    distinct,
    files_of_days,
    find_rows,
    read_file,
    replace_days,
    replace_positions,
    replace_rows,
)
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter, arrow_schema
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.run.position import ERASURES, RESTORES, Change, CommittedVersions, Position, Selection, Versions
from posthouse.pipeline.run.small_plans import SmallPlans, small_plans
from posthouse.pipeline.tables.bronze import COPIES, DAY, EPOCHS_TABLE, LOST, application_id, day_of
from posthouse.pipeline.tables.catalog import BY_NAME, TABLES, levels
from posthouse.pipeline.tables.declaration import GROUP_HASH, KEY_HASH, RefreshMode, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


SMALL_ROWS = 200_000  # rows that the driver may collect: a few hundred MB
SMALL_TABLE_ROWS = 20_000  # input rows up to which the driver replaces a table: Spark's writers cost more than the rows
_WORKERS = 4  # tables derived concurrently: planning a query is mostly waiting
_MAX_DAYS = 100  # with more changed days, replacing the whole table is as fast
_ROWS_PER_FILE = 1_000_000  # of facts


class Deriver:
    """Derives the tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake, on_step: OnStep, *, is_rebuild: bool = False) -> None:
        self._spark = spark
        self._lake = lake
        self._on_step = on_step
        self._is_rebuild = is_rebuild
        known = lake.epochs()
        self._epochs = [each.epoch for each in known]
        self._live = live_through(known)
        # Grows with every epoch that continues or replaces another; a new store changes no label of an old row.
        self._restores = len(known) - len(set(root_epochs(known).values()))
        self._changes: dict[str, Change] = {}
        self._erasures = ErasureTable(lake.storage)
        self._erased_keys: dict[str, pa.Array] = {}
        self._inputs: dict[tuple[object, ...], pa.Table] = {}
        # Only this deriver commits, so each log is read once per commit. Tables of one level do not read each other.
        self._deltas = {name: lake.delta(name) for name in (*COPIES, *BY_NAME)}
        self._plans = small_plans(spark)
        self._lock = threading.Lock()

    def derive(self) -> None:
        """Bring every table up to date, inputs first."""
        target = self._target_versions()
        if not target.keys() - {RESTORES, ERASURES}:
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
        is_current = position.has_restores and position.has_erasures
        return is_current and not len(self._keys_of_new_facts(table.inputs[0], position).keys)

    def _target_versions(self) -> Versions:
        target = {RESTORES: self._restores}
        if number := self._erasures.newest_number():
            target[ERASURES] = number
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
        is_complete = self._is_rebuild
        if delta.exists and not is_complete and not position.has_erasures:
            seqs = self._erased_since(position)
            is_complete = sum(map(len, seqs.values())) > SMALL_ROWS
            if not is_complete:
                position = self._map_erased(table, delta, position, seqs)
        if position.is_reached and not is_complete:
            return
        after = dict.fromkeys(position.target) if is_complete else position.before
        if self._new_records(after, position.target) <= SMALL_ROWS:
            found = {name: self._few_new_rows(name, after, position.target) for name in table.inputs}
            files = write_rows(delta.storage, self._compute_small(table, found))
        else:
            rows = table.compute({name: self._new_rows(name, after, position.target) for name in table.inputs})
            ordered = rows.hint("rebalance").sortWithinPartitions("epoch", "seq")
            files = write_frame(delta.storage, ordered, max_rows=_ROWS_PER_FILE)
        self._commit(table, delta, position, files, delta.files() if is_complete else [])

    def _map_erased(
        self, table: Table, delta: Delta, position: Position, seqs: Mapping[str, Collection[int]]
    ) -> Position:
        """Map rows of bronze again whose content was erased since the last run; return the position after that."""
        rows = self._compute_small(table, {name: self._rows_at(name, seqs) for name in table.inputs})
        replaced, keys = replace_positions(delta, KEY_HASH, seqs, rows)
        with self._lock:
            self._erased_keys[table.name] = keys
        versions = {ERASURES: position.target[ERASURES]}
        reached = Position({ERASURES: position.before[ERASURES]}, versions)
        self._commit(table, delta, reached, replaced.add, replaced.remove)
        return Position({**position.before, **versions}, position.target)

    def _erased_since(self, position: Position) -> dict[str, set[int]]:
        """Return the seqs, by epoch, of rows that were erased after the table's facts were mapped from them."""
        feeds = [feed.name for feed in COPIES.values()]
        known = {epoch: self._range(epoch, feeds, position.before, position.target).after_seq for epoch in self._epochs}
        records = self._erasures.read(position.before[ERASURES] or 0)
        found = {
            epoch: {seq for seq in seqs if seq <= known.get(epoch, -1)} for epoch, seqs in erased_seqs(records).items()
        }
        return {epoch: seqs for epoch, seqs in found.items() if seqs}

    def _rows_at(self, name: str, seqs: Mapping[str, Collection[int]]) -> pa.Table:
        """Return the rows of a bronze table at these positions; of bronze_epochs, all rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in COPIES:
            return self._lake.epoch_rows()
        ranges = [
            RowFilter(epoch, min(found) - 1, max(found), where=pc.field("seq").isin(pa.array(found, pa.int64())))
            for epoch, found in seqs.items()
        ]
        return self._read_bronze(name, ranges)

    def _fold_facts(self, table: Table, delta: Delta, position: Position) -> None:
        selection = None
        (facts,) = table.inputs
        if position.has_restores and not self._is_rebuild:
            selection = self._keys_of_new_facts(facts, position)
            if not position.has_erasures:
                erased = self._erased_keys.get(facts)
                selection = None if erased is None else Selection(distinct([selection.keys, erased]))
        if selection is None or len(selection.keys):
            self._fold(table, delta, position, selection)
        elif position.has_erasures:
            self._unchanged(table)
        else:
            self._commit(table, delta, position, [], [])

    def _keys_of_new_facts(self, facts: str, position: Position) -> Selection:
        scan, feeds = BronzeScan(self._lake, facts), [feed.name for feed in COPIES.values()]
        ranges = [self._range(epoch, feeds, position.before, position.target) for epoch in self._epochs]
        return Selection(distinct(scan.read(each, (KEY_HASH,)).column(KEY_HASH).cast("int64") for each in ranges))

    def _select(self, table: Table, delta: Delta, position: Position) -> Selection | None:
        """Return the keys that a change of the input affects; None: all of them."""
        (source,) = table.inputs
        change = self._change_since(source, position)
        if change is None:
            return None
        if table.refresh is RefreshMode.FOLLOW_REPLIES:
            return _find_linked(self._plans, self._deltas[source], delta, change.selection.keys)
        return None if change.selection.groups is None else Selection(change.selection.groups)

    def _fold(self, table: Table, delta: Delta, position: Position, selection: Selection | None) -> None:
        """Replace the rows of the selected keys, folded from all input rows of these keys; None: of all keys."""
        (source,) = table.inputs
        if selection is None or len(selection.keys) > SMALL_ROWS:
            self._replace_all(table, delta, position)
            return
        column = GROUP_HASH if BY_NAME[source].group else KEY_HASH
        found = find_rows(self._deltas[source], column, selection.keys, arrow_schema(source))
        rows = self._compute_small(table, {source: found})
        replaced = replace_rows(delta, KEY_HASH, selection.keys, rows)
        if selection.groups is not None:
            selection = Selection(selection.keys, distinct([selection.groups, rows.column(GROUP_HASH)]))
        with self._lock:
            self._changes[table.name] = Change(delta.generation(), selection, replaced.days)
        self._commit(table, delta, position, replaced.add, replaced.remove)

    def _replace_all(self, table: Table, delta: Delta, position: Position) -> None:
        """Replace all rows; without input rows the table is empty, and Spark has nothing to do."""
        inputs = {name: self._deltas[name].files() for name in table.inputs}
        count = sum(file.rows for found in inputs.values() for file in found)
        files: list[DataFile] = []
        if count > SMALL_TABLE_ROWS:
            rows = table.compute({name: self._lake.table(self._spark, name) for name in inputs})
            files = write_frame(delta.storage, rows.hint("rebalance", "day"), _periods_of(inputs))
        elif count:
            rows_of_table = self._compute_small(table, self._few_rows(inputs))
            files = write_periods(delta.storage, rows_of_table)
        self._commit(table, delta, position, files, delta.files())

    def _replace_days(self, table: Table, delta: Delta, position: Position) -> None:
        days = self._changed_days(table, position)
        if days is None:
            self._replace_all(table, delta, position)
            return
        replaced = replace_days(delta, days, self._compute_days(table, days))
        self._commit(table, delta, position, replaced.add, replaced.remove)

    def _compute_days(self, table: Table, days: frozenset[str]) -> pa.Table:
        """Return the rows of a table on some days; several tables of gold read the same input."""
        files = {name: files_of_days(self._deltas[name], days) for name in table.inputs}
        if sum(file.rows for found in files.values() for file in found) > SMALL_ROWS:
            inputs = {name: self._rows_of_days(name, days) for name in files}
            return _stored_types(table, table.compute(inputs).toArrow())
        return self._compute_small(table, self._few_rows(files, *sorted(days)))

    def _rows_of_days(self, name: str, days: frozenset[str]) -> DataFrame:
        from pyspark.sql import functions as f

        rows = self._lake.rows(self._spark, name, keep=lambda file: any(map(file.may_hold, days)))
        return rows.where(f.col(DAY).isin(*days))

    def _few_rows(self, files: Mapping[str, list[DataFile]], *days: str) -> dict[str, pa.Table]:
        """Return the rows of files of some tables, of all days or of these."""
        return {
            name: self._read_once((name, *days), partial(self._read, name, found, days))
            for name, found in files.items()
        }

    def _compute_small(self, table: Table, inputs: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a table for a few input rows; without input rows, return none and do not use Spark."""
        if not any(rows.num_rows for name, rows in inputs.items() if name != EPOCHS_TABLE):
            return arrow_schema(table.name).empty_table()
        labelled = {name: self._labelled(rows) for name, rows in inputs.items()}
        epochs = tuple(self._epochs) if EPOCHS_TABLE in inputs else ()
        return _stored_types(table, self._plans.compute(table.name, table.compute_small, labelled, epochs))

    def _labelled(self, rows: pa.Table) -> pa.Table:
        """Add lost_by_restore to rows that have a position and do not store it."""
        if not {"epoch", "seq"} <= set(rows.column_names) or LOST in rows.column_names:
            return rows
        import pyarrow as pa

        positions = zip(rows.column("epoch").to_pylist(), rows.column("seq").to_pylist(), strict=True)
        lost = [seq > self._live.get(epoch, seq) for epoch, seq in positions]
        return rows.append_column(LOST, pa.array(lost, pa.bool_()))

    def _read(self, name: str, files: list[DataFile], days: tuple[str, ...]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        delta, schema = self._deltas[name], arrow_schema(name)
        rows = pa.concat_tables([schema.empty_table(), *(read_file(delta, file, schema) for file in files)])
        return rows.filter(pc.is_in(rows.column(DAY), value_set=pa.array(days, pa.string()))) if days else rows

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
        """Return the change of an input in this run, if the table has missed no earlier one."""
        change = self._changes.get(name)
        known = position.before[self._deltas[name].input_id()]
        return change if change is not None and change.after == known and not self._is_rebuild else None

    def _new_rows(self, name: str, after: CommittedVersions, target: Versions) -> DataFrame:
        """Return the rows of a bronze table between two versions; of bronze_epochs, all rows."""
        if name not in COPIES:
            return self._lake.table(self._spark, name)
        ranges = [self._range(epoch, [COPIES[name].name], after, target) for epoch in self._epochs]
        rows = self._lake.rows(self._spark, name, keep=lambda file: any(map(_may_match(file), ranges)))
        return self._lake.labelled(self._spark, rows.where(_condition(ranges)))

    def _few_new_rows(self, name: str, after: CommittedVersions, target: Versions) -> pa.Table:
        """Return the same as `_new_rows`, collected; all facts read the same rows."""
        if name not in COPIES:
            return self._lake.epoch_rows()
        ranges = [self._range(epoch, [COPIES[name].name], after, target) for epoch in self._epochs]
        wanted = (name, *((each.epoch, each.after_seq) for each in ranges))
        return self._read_once(wanted, partial(self._read_bronze, name, ranges))

    def _read_bronze(self, name: str, ranges: list[RowFilter]) -> pa.Table:
        import pyarrow as pa

        scan, schema = BronzeScan(self._lake, name), pa.schema([("epoch", pa.string()), *COPIES[name].schema()])
        parts = [scan.read(each, schema.names).cast(schema) for each in ranges]
        return pa.concat_tables([schema.empty_table(), *parts])

    def _read_once(self, wanted: tuple[object, ...], read: Callable[[], pa.Table]) -> pa.Table:
        """Return rows that several tables of a level read, read once."""
        with self._lock:
            if wanted not in self._inputs:
                self._inputs[wanted] = read()
            return self._inputs[wanted]

    def _range(self, epoch: str, feeds: list[str], after: CommittedVersions, target: Versions) -> RowFilter:
        """Return the range of an epoch's new rows, from the position of the feed that is furthest behind."""
        applications = [application_id(epoch, feed) for feed in feeds if application_id(epoch, feed) in target]
        committed = [after[application] for application in applications]
        low = min((-1 if version is None else version for version in committed), default=-1)
        return RowFilter(epoch, low, max((target[application] for application in applications), default=-1))

    def _new_records(self, after: CommittedVersions, target: Versions) -> int:
        copied = {application: to for application, to in target.items() if application not in (RESTORES, ERASURES)}
        return sum(to - (after.get(application) or 0) for application, to in copied.items())

    def _unchanged(self, table: Table) -> None:
        self._on_step(RunStep("unchanged", table.name, 0, {}))

    def _commit(
        self, table: Table, delta: Delta, position: Position, files: list[DataFile], removed: list[DataFile]
    ) -> None:
        is_rewrite = not files and not removed  # only the position changes
        commit = Commit(files, [file.path for file in removed], position.target, position.before, is_rewrite=is_rewrite)
        delta.commit(commit, arrow_schema(table.name))
        rows = sum(file.rows for file in files)
        self._on_step(RunStep("derived", table.name, rows, {"replaced_files": len(removed)}))


def _folds_facts(table: Table) -> bool:
    return table.refresh is RefreshMode.FOLD_KEYS and BY_NAME[table.inputs[0]].refresh is RefreshMode.APPEND_FACTS


def _stored_types(table: Table, rows: pa.Table) -> pa.Table:
    """Return collected rows in the types that the lake stores."""
    schema = arrow_schema(table.name)
    return rows.select(schema.names).cast(schema)


def _unusable(table: Table, delta: Delta, *, is_rebuild: bool) -> str | None:
    """Return why no commit can bring a table up to date; only a rebuild replaces a damaged table."""
    try:
        if not delta.exists or delta.has_schema(arrow_schema(table.name)):
            return None
    except PosthouseError as failure:
        if failure.code != "lake_damaged" or not is_rebuild:
            raise
        return str(failure)
    return "another version of posthouse wrote the table with other columns"


def _periods_of(inputs: Mapping[str, list[DataFile]]) -> Periods:
    """Return the periods before the newest day of the inputs."""
    files = [file for found in inputs.values() for file in found]
    newest_ns = max(file.max_values.get("at_ns", 0) for file in files)
    return Periods.before(max(day_of(newest_ns), *(file.days[1] for file in files if file.days)))


def _may_match(file: DataFile) -> Callable[[RowFilter], bool]:
    return lambda each: each.may_match_in(file)


def _condition(ranges: list[RowFilter]) -> Column:
    from pyspark.sql import functions as f

    condition = f.lit(False)
    for each in ranges:
        is_in_range = (f.col("seq") > f.lit(each.after_seq)) & (f.col("seq") <= f.lit(each.through_seq))
        condition = condition | ((f.col("epoch") == each.epoch) & is_in_range)
    return condition


def _link_hashes(inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the hashes of the message that each message replies to, and of the conversation that its id names."""
    from pyspark.sql import functions as f

    return inputs["messages"].select(
        f.xxhash64("source", "reply_to").alias("parent"),
        f.xxhash64("source", f.coalesce("mesh", f.lit("")), "message_id").alias("named"),
    )


def _find_linked(plans: SmallPlans, messages: Delta, links: Delta, touched: pa.Array) -> Selection:
    """Return the touched messages and all messages of their conversations, and these conversations.

    A message touches the conversation that it was in, the one of the message that it replies to, and the one that
    earlier replies started under its id. A message continues only a message of its own conversation, so the messages
    of these conversations hold every link between them.
    """
    import pyarrow as pa

    text, long = pa.string(), pa.int64()
    columns = pa.schema([(name, text) for name in ("source", "mesh", "message_id", "reply_to")])
    rows = plans.compute("links", _link_hashes, {"messages": find_rows(messages, KEY_HASH, touched, columns)})
    known = find_rows(links, KEY_HASH, distinct([touched, rows.column("parent")]), pa.schema([(GROUP_HASH, long)]))
    groups = distinct([rows.column("named"), known.column(GROUP_HASH)])
    members = find_rows(links, GROUP_HASH, groups, pa.schema([(KEY_HASH, long)]))
    return Selection(distinct([touched, members.column(KEY_HASH)]), groups)
