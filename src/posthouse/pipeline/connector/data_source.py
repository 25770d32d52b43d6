"""The Spark data source "posthouse": batch reader, stream reader and writer.

    spark.dataSource.register(PosthouseSource)
    spark.read.format("posthouse").option("url", "/path/relay.db").option("feed", "events").load()
    rows.write.format("posthouse").option("relay", URL).option("run_id", "nightly-2026-11-15").mode("append").save()
Options of a read: url, feed (default journal), columns (a,b,c), partitionRows; token and tlsCa for a relay;
maxRowsPerBatch for a stream. Spark pickles readers and writers and sends them to workers, so they hold options but no
key and no open file. A stream's only state is its offset (epoch, seq). A write sends nothing until every task has
ended, and then only the rows of the task attempts that Spark committed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from posthouse.model.errors import error
from posthouse.model.limits import MIB
from posthouse.pipeline.connector.feeds import Condition, Feed, bounds, condition_of
from posthouse.pipeline.connector.sink_rows import SinkOptions, SinkRow, check_columns, join_rows, read_row
from posthouse.pipeline.connector.source_access import Access, check_planned, find_feed, parse_source, read_history
from posthouse.pipeline.connector.stores import RelayStore
from posthouse.pipeline.epochs import History, Segment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row, SparkSession


EPOCH = "epoch"
_PARTITION_ROWS = 131_072  # per task: about a second of work, so that a lost task costs little


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """The rows that one task reads."""

    segment: Segment


@dataclass(frozen=True)
class ReadPlan:
    """The options of a read."""

    access: Access
    feed: Feed
    #: The selected columns, in order; they may include EPOCH.
    columns: tuple[str, ...]
    partition_rows: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadPlan:
        """Validate the options of a read without opening the source."""
        url = options.get("url", "")
        if not url:
            raise error("source_invalid", url=url, reason="the option url is missing")
        parse_source(url)
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
        """Return the current history of the source."""
        return read_history(self.access, self.feed)

    def partitions(self, history: History, after: int, to: int) -> list[SegmentPartition]:
        """Split the rows (after, to] into tasks."""
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
            if not isinstance(store, RelayStore):
                check_planned(self.access, store.history(), segment)
                tables = store.read(self.feed, segment.after, segment.to, stored or ("seq",), conditions)
            else:
                tables = store.read(self.feed, segment.after, segment.to)
            for table in tables:
                epochs = pa.repeat(pa.scalar(segment.epoch), table.num_rows)
                chosen = table.append_column(EPOCH, epochs).select(list(self.columns))
                yield from chosen.combine_chunks().to_batches()


class BatchReader(DataSourceReader):
    """Reads the rows (pruned, head] of a feed, narrowed by filters on seq."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that SQL can express exactly; a relay supports only ranges of seq."""
        for each in filters:
            condition = condition_of(each)
            is_pushed = condition is not None and not self._plan.access.address.is_relay
            if condition is not None and (is_pushed or condition.column == "seq"):
                self._conditions.append(condition)
            if not is_pushed:
                yield each

    def partitions(self) -> Sequence[InputPartition]:
        """Split the current history of the source into tasks."""
        history = self._plan.history()
        after, to = bounds(self._conditions)
        return self._plan.partitions(history, after, history.head if to is None else to)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, SegmentPartition):  # Spark passes None if there is no partition
            yield from self._plan.read(partition.segment, self._conditions)


_MAX_ROWS = 1_000_000  # per micro-batch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a feed as a stream, starting at its oldest row."""

    def __init__(self, plan: ReadPlan, options: Mapping[str, str]) -> None:
        self._plan = plan
        self._max_rows = max(int(options.get("maxRowsPerBatch", _MAX_ROWS)), 1)
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the oldest row."""
        history = self._plan.history()
        return {"epoch": history.epoch, "seq": history.pruned_through}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum size of a micro-batch."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch."""
        history = self._plan.history()
        end = self._target or {"epoch": history.epoch, "seq": history.head}
        if end["epoch"] != history.epoch:  # a restore since the target was set dropped the rows above the fork
            end = {"epoch": history.epoch, "seq": min(end["seq"], history.head)}
        after = _continue_at(history, start)
        if isinstance(limit, ReadAllAvailable):
            return end
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._max_rows
        return {"epoch": end["epoch"], "seq": max(after, min(end["seq"], after + rows))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at the current head; the next run reads later rows."""
        history = self._plan.history()
        self._target = {"epoch": history.epoch, "seq": history.head}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the current head."""
        history = self._plan.history()
        return {"epoch": history.epoch, "seq": history.head}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split the rows between two offsets into tasks."""
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


TASK_MAX_BYTES = 64 * MIB  # compressed rows per task: they pass through the driver's memory


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The compressed rows of one task."""

    packed: bytes


class SinkWriter(DataSourceWriter):
    """Validates rows on executors and sends them from the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Row]) -> Staged:
        """Validate and compress the rows of one task."""
        return Staged(pack(read_row(row.asDict()) for row in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sign and send the rows of all tasks, each row once."""
        from posthouse.pipeline.connector.delivery import deliver

        rows = join_rows(row for each in messages if isinstance(each, Staged) for row in unpack(each.packed))
        if rows:
            asyncio.run(deliver(rows, self.options))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: no row was sent."""


def sink_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """Return the writer after validating its options and columns."""
    if overwrite:
        raise error("sink_option_invalid", option="mode", reason="rows can only be appended to a relay")
    check_columns(schema.fieldNames())
    return SinkWriter(SinkOptions.of(given))


def pack(rows: Iterator[SinkRow]) -> bytes:
    """Compress rows; fail if they exceed TASK_MAX_BYTES."""
    compressor, parts, size = zlib.compressobj(1), list[bytes](), 0
    for row in rows:
        parts.append(compressor.compress(msgspec.json.encode(row) + b"\n"))
        size += len(parts[-1])
        if size > TASK_MAX_BYTES:
            raise error("sink_rows_invalid", reason=f"one task exceeds {TASK_MAX_BYTES} bytes; repartition the rows")
    return b"".join([*parts, compressor.flush()])


def unpack(packed: bytes) -> Iterator[SinkRow]:
    """Yield the rows that `pack` compressed."""
    decoder: Any = msgspec.json.Decoder(SinkRow)
    for line in zlib.decompress(packed).splitlines():
        yield decoder.decode(line)


class PosthouseSource(DataSource):
    """The data source: reads journals of stores and relays, and writes to a relay."""

    @classmethod
    def name(cls) -> str:
        return "posthouse"

    def schema(self) -> StructType:
        """Return the columns of the feed that the options name."""
        return ReadPlan.of(self.options).struct()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return BatchReader(ReadPlan.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader."""
        return StreamReader(ReadPlan.of(self.options), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer."""
        return sink_writer(self.options, schema, overwrite)


def register_source(spark: SparkSession) -> None:
    """Register the format "posthouse" in a session."""
    spark.dataSource.register(PosthouseSource)
