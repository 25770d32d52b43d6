"""Derive the declared tables from bronze, each in one commit that stores the versions it is derived from.

The target versions are the same for every table: the last seq of each (epoch, feed) in bronze, and the number of
epochs, because a restore changes which rows are lost. A table at the target is left unchanged. Otherwise facts are
appended from the new rows, partitions with a changed key are replaced, and other tables are replaced completely. A
rebuild replaces every table completely, also in one commit each, so that no reader finds a table empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.lake.frame_files import write_frame
from posthouse.pipeline.lake.lake import stored_schema
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.tables.bronze import BUCKET, COPIES, application_id
from posthouse.pipeline.tables.catalog import BY_NAME, TABLES, levels
from posthouse.pipeline.tables.declaration import RefreshMode, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


BUCKETS = 8  # per table of facts: a lookup by key reads an eighth of the files
EPOCHS = "posthouse:epochs"
_WORKERS = 4  # tables derived concurrently: planning a query is mostly waiting
_MAX_DAYS = 400  # with more changed days, replacing the whole table is as fast
#: Application id -> version.
Versions = dict[str, int]
#: Application id -> version; None: not committed yet.
CommittedVersions = Mapping[str, int | None]


class Deriver:
    """Derives the tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake, on_step: OnStep, *, is_rebuild: bool = False) -> None:
        self._spark = spark
        self._lake = lake
        self._on_step = on_step
        self._is_rebuild = is_rebuild
        self._epochs = [each.epoch for each in lake.epochs()]

    def derive(self) -> None:
        """Bring every table up to date, inputs first."""
        target = self.target_versions()
        if len(target) == 1:
            return  # bronze is empty
        with ThreadPoolExecutor(_WORKERS, "derive") as pool:
            for level in levels(TABLES):
                for done in [pool.submit(self._refresh, table, target) for table in level]:
                    done.result()

    def target_versions(self) -> Versions:
        """Return how far each feed is in bronze: what every derived table should have processed."""
        target = {EPOCHS: len(self._epochs)}
        for name, feed in COPIES.items():
            delta = self._lake.delta(name)
            for epoch in self._epochs:
                application = application_id(epoch, feed.name)
                if (version := delta.app_version(application)) is not None:
                    target[application] = version
        return target

    def _refresh(self, table: Table, target: Versions) -> None:
        delta = self._lake.delta(table.name)
        if self._is_rebuild:
            _delete_unusable(table, delta)
        before = {application: delta.app_version(application) for application in target}
        if before == target and not self._is_rebuild:
            self._on_step(RunStep("unchanged", table.name, 0, {}))
            return
        if table.refresh is RefreshMode.APPEND_FACTS:
            self._append(table, delta, before, target)
        else:
            self._replace(table, delta, before, target)

    def _append(self, table: Table, delta: Delta, before: CommittedVersions, target: Versions) -> None:
        from pyspark.sql import functions as f

        after = dict.fromkeys(target) if self._is_rebuild else before
        inputs = {name: self._new_rows(name, after, target) for name in table.inputs}
        facts = table.function(inputs).select(*table.schema.fieldNames())
        bucket = f.pmod(f.xxhash64(*table.keys), f.lit(BUCKETS)).cast("int")
        rows = facts.withColumn(BUCKET, bucket).repartition(BUCKET)  # Spark joins partitions that turn out small
        files = write_frame(delta.storage, rows, (BUCKET,))
        removed = [file.path for file in delta.files()] if self._is_rebuild else ()
        self._commit(table, delta, Commit(files, removed, target, before), (BUCKET,))

    def _replace(self, table: Table, delta: Delta, before: CommittedVersions, target: Versions) -> None:
        days = self._changed_days(table, before, target)
        inputs = {name: self._lake.table(self._spark, name) for name in table.inputs}
        if days is not None:
            inputs = {name: rows.where(rows["day"].isin(*days)) for name, rows in inputs.items()}
        rows = table.function(inputs).select(*table.schema.fieldNames())
        partition_by = (table.partition,) if table.partition else ()
        # Spark joins parts that turn out small: one file per day, unless a day is large.
        files = write_frame(delta.storage, rows.hint("rebalance", *partition_by), partition_by)
        removed = [file.path for file in delta.files() if days is None or file.partition[str(table.partition)] in days]
        self._commit(table, delta, Commit(files, removed, target, before), partition_by)

    def _commit(self, table: Table, delta: Delta, commit: Commit, partition_by: tuple[str, ...]) -> None:
        delta.commit(commit, _arrow_schema(table), partition_by)
        rows = sum(file.rows for file in commit.add)
        self._on_step(RunStep("derived", table.name, rows, {"replaced_files": len(commit.remove)}))

    def _changed_days(self, table: Table, before: CommittedVersions, target: Versions) -> list[str] | None:
        """Return the days whose input rows changed; None: replace the whole table."""
        if table.partition is None or self._is_rebuild or before.get(EPOCHS) != target[EPOCHS]:
            return None
        days: set[str] = set()
        for name in table.inputs:
            source = BY_NAME[name]
            if source.refresh is not RefreshMode.APPEND_FACTS:
                return None
            keys = list(source.keys)
            changed = self._new_rows(name, before, target).select(*keys).distinct()
            view = self._lake.table(self._spark, name)
            days |= {row[0] for row in view.join(changed, keys, "semi").select("day").distinct().collect()}
        return sorted(days) if len(days) <= _MAX_DAYS else None

    def _new_rows(self, name: str, before: CommittedVersions, target: Versions) -> DataFrame:
        """Return the rows of bronze or of facts between two versions; other tables completely."""
        if name not in COPIES and name not in BY_NAME:
            return self._lake.table(self._spark, name)
        feeds = [COPIES[name].name] if name in COPIES else [feed.name for feed in COPIES.values()]
        after = {epoch: min(_last_seq(before, epoch, feed) for feed in feeds) for epoch in self._epochs}
        rows = self._lake.rows(self._spark, name, keep=lambda file: _may_hold_newer(file, after))
        return self._lake.labelled(self._spark, rows.where(self._is_new(feeds, after, target)))

    def _is_new(self, feeds: list[str], after: Mapping[str, int], target: Versions) -> Column:
        from pyspark.sql import functions as f

        condition = f.lit(False)
        for epoch, low in after.items():
            high = max(target.get(application_id(epoch, feed), -1) for feed in feeds)
            is_in_range = (f.col("seq") > f.lit(low)) & (f.col("seq") <= f.lit(high))
            condition = condition | ((f.col("epoch") == epoch) & is_in_range)
        return condition


def _arrow_schema(table: Table) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = stored_schema(table.name)
    assert schema is not None
    return to_arrow_schema(schema)


def _delete_unusable(table: Table, delta: Delta) -> None:
    """Delete a table that is damaged or has other columns: no commit can replace its rows."""
    try:
        is_usable = not delta.exists or delta.has_schema(_arrow_schema(table))
    except PosthouseError as failure:
        if failure.code != "lake_damaged":
            raise
        is_usable = False
    if not is_usable:
        delta.storage.delete_all()
        delta.forget()


def _last_seq(versions: CommittedVersions, epoch: str, feed: str) -> int:
    version = versions.get(application_id(epoch, feed))
    return -1 if version is None else version


def _may_hold_newer(file: DataFile, after: Mapping[str, int]) -> bool:
    """Return False if the statistics of a file prove that it holds no row above `after` of its epoch."""
    if "seq" not in file.max_values or "epoch" not in file.min_values:
        return file.rows > 0
    lows = [low for epoch, low in after.items() if file.min_values["epoch"] <= epoch <= file.max_values["epoch"]]
    return bool(lows) and int(file.max_values["seq"]) > min(lows)
