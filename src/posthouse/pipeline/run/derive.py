"""Keeping the declared tables up to date with bronze, each in one commit that says how far it has got.

How far is the same for every table: the last seq of each (epoch, feed) that bronze holds, and the number of epochs,
because a restore changes what is lost. A table that has got as far is left alone. Facts are appended from the rows
between; parts are replaced where a key has changed; whole tables are replaced. A rebuild is a run after forgetting.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import DataFile, write_frame
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.lake.lake import BUCKET, stored_schema
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.tables.bronze import COPIES, application_id
from posthouse.pipeline.tables.catalog import BY_NAME, TABLES, levels
from posthouse.pipeline.tables.declaration import Table, Upkeep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


BUCKETS = 8  # of a table of facts: a look-up by key reads an eighth
EPOCHS = "posthouse:epochs"
_AT_ONCE = 4  # tables kept at the same time: planning one is mostly waiting
_MOST_PARTS = 400  # a year of days; above it everything is as quick
Reached = dict[str, int]


class Deriver:
    """Keeps the tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake, tell: OnStep) -> None:
        self._spark = spark
        self._lake = lake
        self._tell = tell
        self._epochs = [each.epoch for each in lake.epochs()]

    def derive(self) -> None:
        """Bring every table up to date, inputs first."""
        goal = self._goal()
        if len(goal) == 1:
            return
        with ThreadPoolExecutor(_AT_ONCE, "derive") as pool:
            for level in levels(TABLES):
                for done in [pool.submit(self._keep, table, goal) for table in level]:
                    done.result()

    def _goal(self) -> Reached:
        goal = {EPOCHS: len(self._epochs)}
        for name, feed in COPIES.items():
            delta = self._lake.delta(name)
            for epoch in self._epochs:
                application = application_id(epoch, feed.name)
                if (reached := delta.reached(application)) is not None:
                    goal[application] = reached
        return goal

    def _keep(self, table: Table, goal: Reached) -> None:
        delta = self._lake.delta(table.name)
        before = {application: delta.reached(application) for application in goal}
        if before == goal:
            self._tell(RunStep("unchanged", table.name, 0, {}))
            return
        if table.upkeep is Upkeep.FACTS:
            self._append(table, delta, before, goal)
        else:
            self._replace(table, delta, before, goal)

    def _append(self, table: Table, delta: Delta, before: Mapping[str, int | None], goal: Reached) -> None:
        from pyspark.sql import functions as f

        inputs = {name: self._fresh(name, before, goal) for name in table.inputs}
        facts = table.function(inputs).select(*table.schema.fieldNames())
        bucket = f.pmod(f.xxhash64(*table.keys), f.lit(BUCKETS)).cast("int")
        rows = facts.withColumn(BUCKET, bucket).repartition(self._width(), BUCKET)
        files = write_frame(delta.path, rows, (BUCKET,))
        self._commit(table, delta, Commit(files, (), goal, before), (BUCKET,))

    def _replace(self, table: Table, delta: Delta, before: Mapping[str, int | None], goal: Reached) -> None:
        parts = self._changed_parts(table, before, goal)
        inputs = {name: self._lake.table(self._spark, name) for name in table.inputs}
        if parts is not None:
            inputs = {name: rows.where(rows["day"].isin(*parts)) for name, rows in inputs.items()}
        rows = table.function(inputs).select(*table.schema.fieldNames())
        partition_by = (table.part,) if table.part else ()
        files = write_frame(delta.path, rows.repartition(1, *partition_by), partition_by)
        gone = [file.path for file in delta.files() if parts is None or file.partition[str(table.part)] in parts]
        self._commit(table, delta, Commit(files, gone, goal, before), partition_by)

    def _commit(self, table: Table, delta: Delta, commit: Commit, partition_by: tuple[str, ...]) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = stored_schema(table.name)
        assert schema is not None
        delta.commit(commit, to_arrow_schema(schema), partition_by)
        rows = sum(file.rows for file in commit.add)
        self._tell(RunStep("derived", table.name, rows, {"replaced_files": len(commit.remove)}))

    def _changed_parts(self, table: Table, before: Mapping[str, int | None], goal: Reached) -> list[str] | None:
        """Return the days of which an input changed; None: replace everything."""
        if table.part is None or before.get(EPOCHS) != goal[EPOCHS]:
            return None
        days: set[str] = set()
        for name in table.inputs:
            source = BY_NAME[name]
            if source.upkeep is not Upkeep.FACTS:
                return None
            keys = list(source.keys)
            touched = self._fresh(name, before, goal).select(*keys).distinct()
            view = self._lake.table(self._spark, name)
            days |= {row[0] for row in view.join(touched, keys, "semi").select("day").distinct().collect()}
        return sorted(days) if len(days) <= _MOST_PARTS else None

    def _fresh(self, name: str, before: Mapping[str, int | None], goal: Reached) -> DataFrame:
        """Return the rows of bronze or of facts that came between two places."""
        if name not in COPIES and name not in BY_NAME:
            return self._lake.table(self._spark, name)
        feeds = [COPIES[name].name] if name in COPIES else [feed.name for feed in COPIES.values()]
        after = {epoch: min(_place(before, epoch, feed) for feed in feeds) for epoch in self._epochs}
        rows = self._lake.rows(self._spark, name, keep=lambda file: _may_hold(file, after))
        return self._lake.labelled(self._spark, rows.where(self._is_between(feeds, after, goal)))

    def _is_between(self, feeds: list[str], after: Mapping[str, int], goal: Reached) -> Column:
        from pyspark.sql import functions as f

        found = f.lit(False)
        for epoch, low in after.items():
            high = max(goal.get(application_id(epoch, feed), -1) for feed in feeds)
            found = found | ((f.col("epoch") == epoch) & (f.col("seq") > f.lit(low)) & (f.col("seq") <= f.lit(high)))
        return found

    def _width(self) -> int:
        return min(BUCKETS, max(self._spark.sparkContext.defaultParallelism, 1))


def _place(reached: Mapping[str, int | None], epoch: str, feed: str) -> int:
    found = reached.get(application_id(epoch, feed))
    return -1 if found is None else found


def _may_hold(file: DataFile, after: Mapping[str, int]) -> bool:
    """Tell by its bounds whether a file can hold a row above these places."""
    if "seq" not in file.most or "epoch" not in file.least:
        return file.rows > 0
    lows = [low for epoch, low in after.items() if file.least["epoch"] <= epoch <= file.most["epoch"]]
    return bool(lows) and int(file.most["seq"]) > min(lows)
