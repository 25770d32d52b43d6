"""What one read of the data source means: options checked once, ranges planned, batches made.

Batch and stream share it. A row carries the epoch that wrote it, so the same seq of two histories is never mistaken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from posthouse.model.errors import error
from posthouse.pipeline.source.conditions import Condition
from posthouse.pipeline.source.feeds import Feed
from posthouse.pipeline.source.file_store import FileStore
from posthouse.pipeline.source.history import History, Segment
from posthouse.pipeline.source.store import Access, find_feed, read_history

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = "epoch"
_PARTITION_ROWS = 131_072  # of one task: a second of work, so that a lost one costs little


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """The rows that one task reads."""

    segment: Segment


@dataclass(frozen=True)
class ReadPlan:
    """The options of a read."""

    access: Access
    feed: Feed
    #: chosen columns in order; EPOCH may be among them
    columns: tuple[str, ...]
    partition_rows: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadPlan:
        """Check the options of a read; raises without touching the source."""
        url = options.get("url", "")
        if not url:
            raise error("source_invalid", url=url, reason="the option url is missing")
        feed = find_feed(options.get("feed", "journal"), url)
        every = (EPOCH, *feed.columns)
        given = options.get("columns")
        columns = tuple(name.strip() for name in given.split(",")) if given else every
        if unknown := [name for name in columns if name not in every]:
            raise error("source_invalid", url=url, reason=f"{feed.name} has no column {unknown[0]!r}")
        rows = int(options.get("partitionRows", _PARTITION_ROWS))
        return cls(Access(url, options.get("token"), options.get("tlsCa")), feed, columns, max(rows, 1))

    def struct(self) -> StructType:
        """Return the columns for Spark."""
        kinds = {field.name: field for field in self.feed.struct().fields}
        kinds[EPOCH] = StructField(EPOCH, StringType())
        return StructType([kinds[name] for name in self.columns])

    def history(self) -> History:
        """Return what the source holds now."""
        return read_history(self.access, self.feed)

    def partitions(self, history: History, after: int, to: int) -> list[SegmentPartition]:
        """Cut the rows (after, to] into tasks."""
        return [
            SegmentPartition(Segment(segment.epoch, low, min(low + self.partition_rows, segment.to)))
            for segment in history.segments(after, to)
            for low in range(segment.after, segment.to, self.partition_rows)
        ]

    def read(self, segment: Segment, conditions: Collection[Condition] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task as Arrow batches."""
        import pyarrow as pa

        stored = tuple(name for name in self.columns if name != EPOCH)
        with self.access.open() as store:
            if isinstance(store, FileStore):
                tables = store.read(self.feed, segment.after, segment.to, stored or ("seq",), conditions)
            else:
                tables = store.read(self.feed, segment.after, segment.to)
            for table in tables:
                epochs = pa.repeat(pa.scalar(segment.epoch), table.num_rows)
                chosen = table.append_column(EPOCH, epochs).select(list(self.columns))
                yield from chosen.combine_chunks().to_batches()
