"""Compute frames of few rows with plans that Spark makes once per session, not once per run.

Planning a query of a hundred rows costs ten times as much as computing it. Here a plan reads its input from a file at a
fixed path, so the next run writes other rows to that file and executes the same plan. This only works for a plan that
keeps no rows from an earlier execution. A plan with an exchange would return the rows that it shuffled before, so it is
made again each time. Workers of a cluster do not see files of the driver, and Spark Connect has no plan to inspect:
there every frame is planned when it is needed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.files import FILE_MODE
from posthouse.pipeline.session.spark import is_on_this_machine, scratch_directory, small_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    #: Returns a frame for input frames by name.
    FrameFunction = Callable[[Mapping[str, DataFrame]], DataFrame]

#: Nodes of a physical plan that keep rows between two executions.
_KEEPING = ("Exchange", "InMemoryTableScan", "Subquery")


class SmallPlans:
    """The plans of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = small_session(spark)
        self._folder = Path(scratch_directory()) if is_on_this_machine(spark) else None
        self._plans: dict[tuple[object, ...], DataFrame] = {}
        #: By name: a plan always reads the same files, so two computations of it must not overlap.
        self._locks: dict[str, threading.Lock] = {}

    def compute(
        self, name: str, function: FrameFunction, inputs: Mapping[str, pa.Table], literals: Hashable = None
    ) -> pa.Table:
        """Return the rows that a function returns for these inputs; a name must always belong to the same function.

        `literals` are the values that the function collects from an input and writes into the plan.
        """
        folder = self._folder
        if folder is None:
            return function({each: self._frame(rows) for each, rows in inputs.items()}).toArrow()
        key = (name, literals, *((each, rows.schema.to_string()) for each, rows in inputs.items()))
        paths = {each: folder / f"{name}.{each}.arrow" for each in inputs}
        with self._locks.setdefault(name, threading.Lock()):
            try:
                for each, rows in inputs.items():
                    _write(paths[each], rows)
                plan = self._plans.get(key)
                if plan is None:
                    plan = function({each: self._source(paths[each], rows.schema) for each, rows in inputs.items()})
                    if _is_repeatable(plan):
                        self._plans[key] = plan
                return plan.toArrow()
            finally:
                for path in paths.values():  # texts of messages must not stay on disk
                    path.unlink(missing_ok=True)

    def _source(self, path: Path, schema: pa.Schema) -> DataFrame:
        """Return a frame of one partition, which Spark groups and joins without a shuffle."""
        from pyspark.sql.pandas.types import from_arrow_schema

        place = str(path)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from posthouse.pipeline.run.small_plans import replace_batches

            return replace_batches(batches, place)

        return self.spark.range(0, 1, 1, 1).mapInArrow(read, from_arrow_schema(schema)).coalesce(1)

    def _frame(self, rows: pa.Table) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        return self.spark.createDataFrame(rows, from_arrow_schema(rows.schema)).coalesce(1)


def _write(path: Path, rows: pa.Table) -> None:
    """Write rows to a file that other users cannot read, whatever directory it is in."""
    import pyarrow as pa

    path.touch(FILE_MODE)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)


def replace_batches(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a file once all batches were read: Spark ends a worker that leaves some of its input unread."""
    for _ in batches:
        pass
    yield from read_batches(path)


def read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a file."""
    import pyarrow as pa

    with pa.OSFile(path, "rb") as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def _is_repeatable(plan: DataFrame) -> bool:
    shown = plan._jdf.queryExecution().executedPlan().toString()
    return not any(each in shown for each in _KEEPING)


@functools.lru_cache(maxsize=1)
def small_plans(spark: SparkSession) -> SmallPlans:
    """Return the plans of a session."""
    return SmallPlans(spark)
