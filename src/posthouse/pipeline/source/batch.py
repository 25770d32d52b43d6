"""The batch reader: what a source holds at the moment of planning, with filters pushed down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from posthouse.pipeline.source.conditions import Condition, bounds, condition_of
from posthouse.pipeline.source.plan import ReadPlan, SegmentPartition

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads (pruned, head] of a feed, as far as filters on seq leave it."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what SQL can say exactly; a relay is asked for ranges of seq only."""
        for each in filters:
            condition = condition_of(each)
            is_taken = condition is not None and not self._plan.access.address.is_relay
            if condition is not None and (is_taken or condition.column == "seq"):
                self._conditions.append(condition)
            if not is_taken:
                yield each

    def partitions(self) -> Sequence[InputPartition]:
        """Cut what the source holds now into tasks."""
        history = self._plan.history()
        after, to = bounds(self._conditions)
        return self._plan.partitions(history, after, history.head if to is None else to)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, SegmentPartition):  # Spark asks with None when there is no partition
            yield from self._plan.read(partition.segment, self._conditions)
