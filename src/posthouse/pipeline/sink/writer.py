"""The writer that Spark runs: executors read and judge rows, the driver's commit signs and sends them.

    rows.write.format("posthouse").option("relay", URL).option("run_id", "nightly-2026-11-15").mode("append").save()

Nothing is sent before every task has ended, and only the rows of attempts that Spark committed are: a task that failed
or ran twice adds nothing. A commit that is repeated, by Spark or by whoever runs the job again with the same run id,
sends requests that the relay knows. The writer is pickled to executors; it holds options and no key.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from posthouse.model.errors import error
from posthouse.model.limits import MIB
from posthouse.pipeline.sink.options import SinkOptions
from posthouse.pipeline.sink.row import SinkRow, check_columns, join_rows, read_row

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

TASK_MAX_BYTES = 64 * MIB  # of one task's rows, packed: they go through the driver's memory


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The rows of one task, packed."""

    packed: bytes


class SinkWriter(DataSourceWriter):
    """Stages rows on executors and sends them from the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Row]) -> Staged:
        """Read and judge the rows of one task."""
        return Staged(pack(read_row(row.asDict()) for row in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sign and send the rows of all tasks, each once."""
        from posthouse.pipeline.sink.deliver import deliver

        rows = join_rows(row for each in messages if isinstance(each, Staged) for row in unpack(each.packed))
        if rows:
            asyncio.run(deliver(rows, self.options))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing was sent."""


def sink_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """Return the writer of a write, or raise what is wrong with its options or columns."""
    if overwrite:
        raise error("sink_option_invalid", option="mode", reason="a relay is only ever appended to")
    check_columns(schema.fieldNames())
    return SinkWriter(SinkOptions.of(given))


def pack(rows: Iterator[SinkRow]) -> bytes:
    """Return rows as bytes, bounded in size."""
    packer, parts, size = zlib.compressobj(1), list[bytes](), 0
    for row in rows:
        parts.append(packer.compress(msgspec.json.encode(row) + b"\n"))
        size += len(parts[-1])
        if size > TASK_MAX_BYTES:
            raise error("sink_rows_invalid", reason=f"one task has more than {TASK_MAX_BYTES} bytes; repartition them")
    return b"".join([*parts, packer.flush()])


def unpack(packed: bytes) -> Iterator[SinkRow]:
    """Yield the rows again."""
    decoder: Any = msgspec.json.Decoder(SinkRow)
    for line in zlib.decompress(packed).splitlines():
        yield decoder.decode(line)
