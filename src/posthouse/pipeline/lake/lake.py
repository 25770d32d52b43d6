"""Read the lake: tables as DataFrames, or rows of bronze directly from their files without Spark.

    lake = Lake(Path("~/.posthouse/lake").expanduser())
    lake.table(spark, "silver_messages").where("lost_by_restore = false").count()
`rows` returns stored rows. `table` also labels rows of bronze and of facts with lost_by_restore; tables of the current
state store that label. BronzeScan selects files by statistics, for lookups that must start quickly. A reader sees one
commit of each table. A missing or truncated file is an error, never skipped. This module does not write, and importing
it loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.epochs import Epoch, live_through, root_epochs
from posthouse.pipeline.lake.bronze_seals import SealedCommit, SealTable
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.delta import Delta, check_files
from posthouse.pipeline.lake.frame_files import read_files
from posthouse.pipeline.lake.storage import LOG, LocalStorage, open_storage
from posthouse.pipeline.tables.bronze import (
    COPIES,
    EPOCHS_TABLE,
    ERASURES_TABLE,
    LOST,
    SEALS_TABLE,
    bronze_schema,
    epochs_schema,
)
from posthouse.pipeline.tables.columns import comment

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Lake:
    """The tables of a lake in a directory, or below s3://BUCKET/PREFIX."""

    def __init__(self, location: str | Path) -> None:
        self.storage = open_storage(location)

    @property
    def location(self) -> str:
        """The address of the lake."""
        return self.storage.uri

    @property
    def path(self) -> Path:
        """The directory on this host for files that are not tables; the tables of a local lake are here too."""
        return self.storage.host_directory

    def delta(self, name: str) -> Delta:
        """Return the Delta table with this name."""
        return Delta(self.storage.child(name))

    def names(self) -> list[str]:
        """Return the names of tables with at least one commit."""
        return [name for name in self.storage.child_names() if self.delta(name).exists]

    def versions(self) -> dict[str, int]:
        """Return the version of the newest commit of every table."""
        return {name: self.delta(name).version() for name in self.names()}

    def sealed_commits(self, table: str, after_version: int = -1) -> list[SealedCommit]:
        """Return the sealed commits of a bronze table after a version, oldest first."""
        return SealTable(self.storage).commits(table, after_version)

    def epochs(self) -> list[Epoch]:
        """Return all epochs, oldest first."""
        import pyarrow.parquet as pq

        table = self.delta(EPOCHS_TABLE)
        files = table.files()
        check_files(table, files)
        storage = table.storage
        opened = (pq.ParquetFile(storage.full_path(file.path), filesystem=storage.filesystem()) for file in files)
        rows = [row for file in opened for row in file.read().to_pylist()]
        return sorted((Epoch(**row) for row in rows), key=lambda each: (each.started_at_ns, each.epoch))

    def table(self, spark: SparkSession, name: str) -> DataFrame:
        """Return the rows of a table, labelled with lost_by_restore; a declared table without a commit is empty."""
        if name == EPOCHS_TABLE:
            return self._epochs_view(spark)
        return self.labelled(spark, self.rows(spark, name))

    def rows(
        self,
        spark: SparkSession,
        name: str,
        columns: Collection[str] | None = None,
        keep: Callable[[DataFile], bool] | None = None,
    ) -> DataFrame:
        """Return stored rows; `keep` may skip files by their statistics."""
        schema = stored_schema(name)
        if schema is None:
            raise error("lake_empty", path=self.location, table=name)
        table = self.delta(name)
        if bronze_schema(name) is None and not table.is_current():
            raise error("lake_older", table=name)
        files = [file for file in table.files() if keep is None or keep(file)]
        check_files(table, files)
        return read_files(spark, table.storage, files, schema, tuple(columns or schema.fieldNames()))

    def labelled(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        """Add lost_by_restore to rows that have epoch and seq but not this column; return other rows unchanged."""
        from pyspark.sql import functions as f

        if not {"epoch", "seq"} <= set(rows.columns) or LOST in rows.columns:
            return rows
        lost = f.lit(False)
        for epoch, through in live_through(self.epochs()).items():
            lost = f.when(f.col("epoch") == epoch, f.col("seq") > f.lit(through)).otherwise(lost)
        return rows.withColumn(LOST, lost)

    def _epochs_view(self, spark: SparkSession) -> DataFrame:
        """Return the epochs with a column `root`, which identifies the store across restores."""
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = self.epoch_rows()
        return spark.createDataFrame(rows, from_arrow_schema(rows.schema))

    def epoch_rows(self) -> pa.Table:
        """Return the epochs as `table` does, without Spark."""
        import pyarrow as pa

        known = self.epochs()
        root = root_epochs(known)
        rows = [asdict(each) | {"root": root[each.epoch]} for each in known]
        return pa.Table.from_pylist(rows, epochs_schema().append(pa.field("root", pa.string())))

    def register(self, spark: SparkSession, wanted: Collection[str] | None = None) -> list[str]:
        """Register tables as SQL views, all or those in `wanted`, and return their names."""
        names = declared_names()
        if not self.names():
            raise error("lake_empty", path=self.location, table="at all")
        chosen = names if wanted is None else [name for name in names if name in wanted]
        for name in chosen:
            _with_comments(name, self.table(spark, name)).createOrReplaceTempView(name)
        return chosen


def _with_comments(name: str, rows: DataFrame) -> DataFrame:
    """Return the rows of a table with a comment on each column, which DESCRIBE shows."""
    from pyspark.sql.types import StructField, StructType

    fields = [
        StructField(each.name, each.dataType, each.nullable, {"comment": comment(name, each.name)})
        for each in rows.schema.fields
    ]
    return rows.to(StructType(fields))


def declared_names() -> list[str]:
    """Return the name of every table of a lake: bronze, silver, gold."""
    from posthouse.pipeline.tables.catalog import TABLES

    return [*COPIES, EPOCHS_TABLE, SEALS_TABLE, ERASURES_TABLE, *(table.name for table in TABLES)]


def stored_schema(name: str) -> StructType | None:
    """Return the stored columns of a table; None for an undeclared table."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from posthouse.pipeline.tables.catalog import BY_NAME

    if (bronze := bronze_schema(name)) is not None:
        return from_arrow_schema(bronze)
    return BY_NAME[name].stored if name in BY_NAME else None


def arrow_schema(name: str) -> pa.Schema:
    """Return the stored columns of a declared table for Arrow and Delta, each with its comment."""
    import pyarrow as pa

    schema = bronze_schema(name)
    if schema is None:
        from pyspark.sql.pandas.types import to_arrow_schema

        stored = stored_schema(name)
        assert stored is not None
        schema = to_arrow_schema(stored, timezone="UTC")
    return pa.schema([field.with_metadata({"comment": comment(name, field.name)}) for field in schema])


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on rows; a field that is None matches every row."""

    epoch: str | None = None
    after_seq: int = 0
    through_seq: int | None = None
    #: UTC days, inclusive, as in 2026-11-15.
    first_day: str | None = None
    last_day: str | None = None
    #: A further condition on columns of the table.
    where: pc.Expression | None = None

    def may_match_in(self, file: DataFile) -> bool:
        """Return False if the statistics of a file prove that no row matches."""
        if file.days is not None:
            first, last = file.days
            if (self.first_day or last) > last or (self.last_day or first) < first:
                return False
        if file.max_values.get("seq", self.after_seq + 1) <= self.after_seq:
            return False
        if self.through_seq is not None and file.min_values.get("seq", self.through_seq) > self.through_seq:
            return False
        low, high = file.min_values.get("epoch"), file.max_values.get("epoch")
        return self.epoch is None or low is None or high is None or low <= self.epoch <= high

    def condition(self) -> pc.Expression:
        """Return the condition for Arrow."""
        import pyarrow.compute as pc

        found = pc.field("seq") > self.after_seq
        if self.through_seq is not None:
            found &= pc.field("seq") <= self.through_seq
        if self.epoch is not None:
            found &= pc.field("epoch") == self.epoch
        return found if self.where is None else found & self.where


class BronzeScan:
    """Read one bronze table at its newest commit, without Spark."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._table: Delta = lake.delta(name)
        self._files: list[DataFile] | None = None

    @property
    def files(self) -> list[DataFile]:
        """The files of the table, read from the log once."""
        if self._files is None:
            self._files = self._table.files()
        return self._files

    def paths(self, choice: RowFilter) -> list[str]:
        """Return the files that may hold matching rows, newest seq last; fail if one is missing or truncated."""
        chosen = [file for file in self.files if choice.may_match_in(file)]
        check_files(self._table, chosen)
        chosen.sort(key=lambda file: (file.min_values.get("seq", 0), file.path))
        return [file.path for file in chosen]

    def read(self, choice: RowFilter, columns: Sequence[str]) -> pa.Table:
        """Return all matching rows."""
        import pyarrow as pa

        parts = list(self.batches(choice, columns))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def batches(self, choice: RowFilter, columns: Sequence[str], *, newest_first: bool = False) -> Iterator[pa.Table]:
        """Yield matching rows file by file, ordered by the smallest seq of each file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths, storage = self.paths(choice), self._table.storage
        condition = choice.condition()
        for path in reversed(paths) if newest_first else paths:
            try:
                yield pq.read_table(
                    storage.full_path(path),
                    columns=list(columns),
                    filters=condition,
                    partitioning=None,
                    filesystem=storage.filesystem(),
                )
            except (pa.ArrowException, OSError) as failure:
                reason = f"{path}: {str(failure).partition(chr(10))[0]}"
                raise error("lake_damaged", table=self._table.name, reason=reason) from failure

    def sync(self, paths: Collection[str]) -> None:
        """Sync files of the table and its log to disk; the process that wrote them may not have done so."""
        storage = self._table.storage
        storage.sync(paths)
        if isinstance(storage, LocalStorage):
            log = storage.child(LOG)
            log.sync([path.name for path in log.path.iterdir() if path.is_file()])

    def rows(self, choice: RowFilter, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all matching rows as dicts."""
        found: list[dict[str, Any]] = self.read(choice, columns).to_pylist()
        return found
