"""The stream reader: a cursor (epoch, seq) that follows a journal, as much at a time as was asked for.

After a restore it goes on where the two histories were still one: rows that were read and then lost stay read, the
new history is read in full. Nothing is remembered in commit(), which comes late and may repeat: the offset is all
there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from posthouse.pipeline.source.history import History
from posthouse.pipeline.source.plan import ReadPlan, SegmentPartition

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ROWS = 1_000_000  # of one micro-batch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a feed from its oldest row on."""

    def __init__(self, plan: ReadPlan, options: Mapping[str, str]) -> None:
        self._plan = plan
        self._max_rows = max(int(options.get("maxRowsPerBatch", _MAX_ROWS)), 1)
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the place before the oldest row."""
        history = self._plan.history()
        return {"epoch": history.epoch, "seq": history.pruned_through}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much one micro-batch may take."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends."""
        history = self._plan.history()
        end = self._target or {"epoch": history.epoch, "seq": history.head}
        if end["epoch"] != history.epoch:  # restored since the target was set: nothing above the fork is left
            end = {"epoch": history.epoch, "seq": min(end["seq"], history.head)}
        after = _continue_at(history, start)
        if isinstance(limit, ReadAllAvailable):
            return end
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_rows
        return {"epoch": end["epoch"], "seq": max(after, min(end["seq"], after + rows))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the head of now: what comes later is another run's."""
        history = self._plan.history()
        self._target = {"epoch": history.epoch, "seq": history.head}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the head."""
        history = self._plan.history()
        return {"epoch": history.epoch, "seq": history.head}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the rows between two offsets into tasks."""
        history = self._plan.history()
        return self._plan.partitions(history, _continue_at(history, start), end["seq"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, SegmentPartition):
            yield from self._plan.read(partition.segment)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the source keeps no state."""


def _continue_at(history: History, start: Mapping[str, Any]) -> int:
    if start["epoch"] == history.epoch:
        return int(start["seq"])
    return min(int(start["seq"]), history.shared_with(str(start["epoch"])))
