"""Read the files that a commit names into a DataFrame, and write a DataFrame to new files for the next commit.

In a directory, Spark reads and writes Parquet itself; the driver moves new files from a staging directory into place.
For S3, which the PySpark wheel cannot open, workers read and write through pyarrow: the driver sends them files and
columns, and their environment has the keys. A task that Spark runs twice writes two files, and only the one that its
result names is committed. To Spark these tasks are opaque, so it neither prunes columns nor skips files for them.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.files import fsync_dir, private_dir, sync_file
from posthouse.model.errors import error
from posthouse.model.limits import MIB
from posthouse.pipeline.lake.data_file import (
    FILE_ROWS,
    MONTH_CHARS,
    YEAR_CHARS,
    DataFile,
    Periods,
    describe_file,
    new_path,
)
from posthouse.pipeline.lake.storage import LocalStorage, Storage
from posthouse.pipeline.tables.bronze import DAY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_Batches = Iterator["pa.RecordBatch"]
_BATCH_ROWS = 32_768  # per Arrow batch that a worker hands to Spark
_GROUP_ROWS = 131_072  # per row group of a file that a worker writes through pyarrow
_GROUP_BYTES = 8 * MIB  # per row group of a file that Spark writes
_TASK_BYTES = 8 * MIB  # of files that one task reads: small ones share a task
_WRITTEN = "file string"
#: The path of a file, and the values of its partition columns.
_Part = tuple[str, Mapping[str, str]]
_PERIOD = "_period"  # the column that Spark splits files by; it is not in the files


def read_files(
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: StructType, columns: Sequence[str]
) -> DataFrame:
    """Return columns of the rows in files of a table; partition values of older tables come from the paths."""
    if not files:
        return spark.createDataFrame([], schema).select(*columns)
    if isinstance(storage, LocalStorage):
        paths = [storage.full_path(file.path) for file in files]
        return spark.read.schema(schema).option("basePath", storage.uri).parquet(*paths).select(*columns)
    return _read_in_workers(spark, storage, files, schema, columns)


def write_frame(
    storage: Storage, rows: DataFrame, periods: Periods | None = None, max_rows: int = FILE_ROWS
) -> list[DataFile]:
    """Write rows to new files of a table and return the files; without rows there are none.

    With `periods` a file holds rows of one period. On a local disk a file has at most `max_rows`.
    """
    if isinstance(storage, LocalStorage):
        return _write_to_directory(storage, rows, periods, max_rows)
    return _write_in_workers(storage, rows, periods)


def _write_to_directory(
    storage: LocalStorage, rows: DataFrame, periods: Periods | None, max_rows: int
) -> list[DataFile]:
    """Let Spark write rows to a staging directory, and move the files to the table.

    Raise lake_files_missing if the files on this host do not hold as many rows as the workers wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    table, batch = storage.path, secrets.token_hex(12)
    staging = private_dir(table) / f"staging-{batch}"
    written = Observation()
    observed = rows.observe(written, f.count(f.lit(1)).alias("rows"))
    options: dict[str, str | int] = {
        "compression": "zstd",
        "parquet.block.size": _GROUP_BYTES,
        "maxRecordsPerFile": max_rows,
    }
    split = observed.write if periods is None else _by_period(observed, periods).write.partitionBy(_PERIOD)
    split.options(**options).parquet(str(staging))
    parts = [path for path in sorted(staging.rglob("*.parquet")) if path.name[0] not in "._"]
    moved = [_move(path, table / f"{batch}-{number:05d}.parquet") for number, path in enumerate(parts)]
    shutil.rmtree(staging)
    fsync_dir(table)
    files = [describe_file(storage, path.name) for path in moved]
    expected, found = int(written.get["rows"]), sum(file.rows for file in files)
    if found != expected:
        raise error("lake_files_missing", path=str(table), expected=expected, found=found)
    return files


def _by_period(rows: DataFrame, periods: Periods) -> DataFrame:
    """Add the period of each row, computed as in Periods.of."""
    from pyspark.sql import functions as f

    day = f.col(DAY)
    by_month = f.when(day >= periods.first_of_months, f.left(day, f.lit(MONTH_CHARS)))
    period = f.when(day >= periods.first_day, day).otherwise(by_month.otherwise(f.left(day, f.lit(YEAR_CHARS))))
    return rows.withColumn(_PERIOD, period)


def _move(path: Path, target: Path) -> Path:
    path.chmod(0o600)
    sync_file(path)
    return path.rename(target)


def _read_in_workers(
    spark: SparkSession, storage: Storage, files: Sequence[DataFile], schema: StructType, columns: Sequence[str]
) -> DataFrame:
    """Return columns of the rows of files; a task reads one large file or several small ones."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    chosen = StructType([schema[name] for name in columns])
    wanted, tasks = to_arrow_schema(chosen, timezone="UTC"), _pack(files)

    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.lake.frame_files import read_batches

        return read_batches(storage, tasks, wanted, batches)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, chosen)


def _pack(files: Sequence[DataFile]) -> list[list[_Part]]:
    """Group files into tasks of about _TASK_BYTES, in order."""
    tasks: list[list[_Part]] = []
    size_bytes = _TASK_BYTES
    for file in files:
        if size_bytes >= _TASK_BYTES:
            tasks.append([])
            size_bytes = 0
        tasks[-1].append((file.path, dict(file.partition)))
        size_bytes += file.size_bytes
    return tasks


def read_batches(storage: Storage, tasks: Sequence[Sequence[_Part]], wanted: pa.Schema, indexes: _Batches) -> _Batches:
    """Yield the rows of the files of the tasks with these indexes."""
    import pyarrow.parquet as pq

    for index in (index for batch in indexes for index in batch.column(0).to_pylist()):
        for path, partition in tasks[index]:
            stored = [name for name in wanted.names if name not in partition]
            with pq.ParquetFile(storage.full_path(path), filesystem=storage.filesystem()) as file:
                for rows in file.iter_batches(_BATCH_ROWS, columns=stored):
                    yield _complete(rows, partition, wanted)


def _complete(rows: pa.RecordBatch, partition: Mapping[str, str], wanted: pa.Schema) -> pa.RecordBatch:
    """Return the columns in order and with the types that Spark expects, with the values of the partition."""
    import pyarrow as pa

    columns = []
    for field in wanted:
        if field.name in partition:
            columns.append(pa.repeat(pa.scalar(partition[field.name]), rows.num_rows).cast(field.type))
        else:
            columns.append(rows.column(field.name).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _write_in_workers(storage: Storage, rows: DataFrame, periods: Periods | None) -> list[DataFile]:
    """Write rows to new files, from the Spark tasks that hold the rows, and return the files."""

    def work(batches: _Batches) -> _Batches:
        from posthouse.pipeline.lake.frame_files import write_batches

        return write_batches(storage, periods, batches)

    written = rows.mapInArrow(work, _WRITTEN).collect()
    return [msgspec.json.decode(row[0], type=DataFile) for row in written]


def write_batches(storage: Storage, periods: Periods | None, batches: _Batches) -> _Batches:
    """Write the rows of a task, into one file or one per period, and yield a description of each file as JSON."""
    import pyarrow as pa

    with ExitStack() as opened:
        files: dict[str, _PartFile] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for period, part in [("", rows)] if periods is None else _split(rows, periods):
                if period not in files:
                    files[period] = opened.enter_context(_PartFile(storage))
                files[period].write(part)
    described = [msgspec.json.encode(describe_file(storage, file.path)).decode() for file in files.values()]
    if described:
        yield pa.RecordBatch.from_arrays([pa.array(described, pa.string())], names=["file"])


def _split(rows: pa.Table, periods: Periods) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each day, with the period of the day."""
    import pyarrow.compute as pc

    for day in pc.unique(rows.column(DAY)).to_pylist():
        if day is None:
            raise ValueError("a row has no day")
        yield periods.of(day), rows.filter(pc.equal(rows.column(DAY), day))


class _PartFile:
    """One file that a task writes; a context manager that finishes it."""

    def __init__(self, storage: Storage) -> None:
        self.path = new_path()
        self._storage = storage
        self._writer: Any = None
        self._held: list[pa.Table] = []

    def __enter__(self) -> _PartFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: pa.Table) -> None:
        """Add rows; they are written in groups."""
        self._held.append(rows)
        if sum(each.num_rows for each in self._held) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held = []
        if self._writer is None:
            self._storage.prepare(self.path)
            target, filesystem = self._storage.full_path(self.path), self._storage.filesystem()
            self._writer = pq.ParquetWriter(target, rows.schema, filesystem=filesystem, compression="zstd")
        self._writer.write_table(rows)
