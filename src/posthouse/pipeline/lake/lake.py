"""The lake as readers see it: tables as DataFrames, or rows of bronze straight from their files without Spark.

    lake = Lake(Path("~/.posthouse/lake").expanduser())
    lake.table(spark, "silver_messages").where("lost_by_restore = false").count()
`rows` are stored rows; `table` is the current view: labelled with what a restore has lost, and folded to one row per
key where a table declares that. BronzeScan chooses files by partition and statistics, for lookups that must start at
once. A reader sees one commit of each table. A missing or truncated file is an error, never skipped. Nothing is written
here, and importing this module loads neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.epochs import Epoch, live_through, root_epochs
from posthouse.pipeline.lake.data_file import DataFile
from posthouse.pipeline.lake.delta import Delta, check_files
from posthouse.pipeline.tables.bronze import COPIES, DAY, EPOCHS_TABLE, bronze_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_EPOCH = (*(each.name for each in fields(Epoch)), "root")
BUCKET = "bucket"
LOST = "lost_by_restore"


class Lake:
    """A directory of Delta tables."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def delta(self, name: str) -> Delta:
        """Return a table as Delta knows it."""
        return Delta(self.path / name)

    def names(self) -> list[str]:
        """Return the tables that were ever committed."""
        found = (path.parent.name for path in self.path.glob("*/_delta_log"))
        return sorted(name for name in found if self.delta(name).exists)

    def versions(self) -> dict[str, int]:
        """Return the newest commit of every table."""
        return {name: self.delta(name).version() for name in self.names()}

    def epochs(self) -> list[Epoch]:
        """Return what is known of every epoch."""
        import pyarrow.parquet as pq

        table = self.delta(EPOCHS_TABLE)
        files = table.files()
        check_files(table, files)
        rows = [row for file in files for row in pq.ParquetFile(table.path / file.path).read().to_pylist()]
        return sorted((Epoch(**row) for row in rows), key=lambda each: (each.started_at_ns, each.epoch))

    def table(self, spark: SparkSession, name: str) -> DataFrame:
        """Return what holds now: rows, or the latest view where there is one; a declared table may be empty."""
        from posthouse.pipeline.tables.catalog import BY_NAME

        if name in BY_NAME:
            return BY_NAME[name].view(self.labelled(spark, self.rows(spark, name)))
        if name == EPOCHS_TABLE:
            return self._epochs_view(spark)
        return self.labelled(spark, self.rows(spark, name)) if name in COPIES else self.rows(spark, name)

    def rows(
        self,
        spark: SparkSession,
        name: str,
        columns: Collection[str] | None = None,
        keep: Callable[[DataFile], bool] | None = None,
    ) -> DataFrame:
        """Return stored rows, of the files that `keep` chooses by their statistics or of all."""
        schema = stored_schema(name)
        if schema is None:
            raise error("lake_empty", path=str(self.path), table=name)
        table = self.delta(name)
        files = [file for file in table.files() if keep is None or keep(file)]
        check_files(table, files)
        frame = read_files(spark, table.path, files, schema)
        chosen = [field.name for field in schema.fields if field.name != BUCKET]
        return frame.select(*(chosen if columns is None else columns))

    def labelled(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        """Return rows with lost_by_restore, if they say which epoch and seq they are of."""
        from pyspark.sql import functions as f

        if not {"epoch", "seq"} <= set(rows.columns):
            return rows
        lost = f.lit(False)
        for epoch, through in live_through(self.epochs()).items():
            lost = f.when(f.col("epoch") == epoch, f.col("seq") > f.lit(through)).otherwise(lost)
        return rows.withColumn(LOST, lost)

    def _epochs_view(self, spark: SparkSession) -> DataFrame:
        """Return the epochs with the root of each, the name of its store over all restores."""
        known = self.epochs()
        root = root_epochs(known)
        columns = ", ".join(
            f"{name} {'long' if name in ('fork_seq', 'started_at_ns') else 'string'}" for name in _EPOCH
        )
        rows = [(*astuple(each), root[each.epoch]) for each in known]
        return spark.createDataFrame(rows, columns)

    def register(self, spark: SparkSession, wanted: Collection[str] | None = None) -> list[str]:
        """Make tables views that SQL can name, those wanted or all, and return their names."""
        names = declared_names()
        if not self.names():
            raise error("lake_empty", path=str(self.path), table="at all")
        chosen = names if wanted is None else [name for name in names if name in wanted]
        for name in chosen:
            self.table(spark, name).createOrReplaceTempView(name)
        return chosen


def declared_names() -> list[str]:
    """Return the name of every table that a lake can have: bronze, silver, gold."""
    from posthouse.pipeline.tables.catalog import TABLES

    return [*COPIES, EPOCHS_TABLE, *(table.name for table in TABLES)]


def stored_schema(name: str) -> StructType | None:
    """Return the columns that the files of a table have, partitions included."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import IntegerType, StructField, StructType

    from posthouse.pipeline.tables.catalog import BY_NAME
    from posthouse.pipeline.tables.declaration import Upkeep

    if (bronze := bronze_schema(name)) is not None:
        return from_arrow_schema(bronze)
    if name not in BY_NAME:
        return None
    declared = BY_NAME[name]
    if declared.upkeep is Upkeep.FACTS:
        return StructType([*declared.schema.fields, StructField(BUCKET, IntegerType())])
    return declared.schema


def read_files(spark: SparkSession, root: Path, files: Collection[DataFile], schema: StructType) -> DataFrame:
    """Return the rows of some files of a table; their partitions are read from their paths."""
    if not files:
        return spark.createDataFrame([], schema)
    paths = [str(root / file.path) for file in files]
    return spark.read.schema(schema).option("basePath", str(root)).parquet(*paths).select(*schema.fieldNames())


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows are wanted; None: any."""

    epoch: str | None = None
    after_seq: int = 0
    through_seq: int | None = None
    #: UTC days, both included, as in 2026-11-15
    first_day: str | None = None
    last_day: str | None = None
    #: another condition on columns of the table
    where: pc.Expression | None = None

    def may_be_in(self, file: DataFile) -> bool:
        """Tell whether the statistics of a file leave room for such rows."""
        day = file.partition.get(DAY)
        if day is not None and ((self.first_day or day) > day or (self.last_day or day) < day):
            return False
        if file.most.get("seq", self.after_seq + 1) <= self.after_seq:
            return False
        if self.through_seq is not None and file.least.get("seq", self.through_seq) > self.through_seq:
            return False
        least, most = file.least.get("epoch"), file.most.get("epoch")
        return self.epoch is None or least is None or most is None or least <= self.epoch <= most

    def condition(self) -> pc.Expression:
        """Return the condition on rows."""
        import pyarrow.compute as pc

        found = pc.field("seq") > self.after_seq
        if self.through_seq is not None:
            found &= pc.field("seq") <= self.through_seq
        if self.epoch is not None:
            found &= pc.field("epoch") == self.epoch
        return found if self.where is None else found & self.where


class BronzeScan:
    """One bronze table, as its newest commit names it."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._table: Delta = lake.delta(name)
        self._files: list[DataFile] | None = None

    @property
    def files(self) -> list[DataFile]:
        """The files of the table, looked up once."""
        if self._files is None:
            self._files = self._table.files()
        return self._files

    def paths(self, choice: RowFilter) -> list[Path]:
        """Return the files that may hold such rows, newest seq last; each is there and whole in size."""
        chosen = [file for file in self.files if choice.may_be_in(file)]
        check_files(self._table, chosen)
        chosen.sort(key=lambda file: (file.least.get("seq", 0), file.path))
        return [self._table.path / file.path for file in chosen]

    def read(self, choice: RowFilter, columns: Sequence[str]) -> pa.Table:
        """Return all such rows."""
        import pyarrow as pa

        parts = list(self.batches(choice, columns))
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def batches(self, choice: RowFilter, columns: Sequence[str], *, newest_first: bool = False) -> Iterator[pa.Table]:
        """Yield such rows file by file; in the order of their oldest row, or the other way round."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = self.paths(choice)
        condition = choice.condition()
        for path in reversed(paths) if newest_first else paths:
            try:
                yield pq.read_table(path, columns=list(columns), filters=condition, partitioning=None)
            except (pa.ArrowException, OSError) as failure:
                reason = f"{path.name}: {str(failure).partition(chr(10))[0]}"
                raise error("lake_damaged", table=self._table.name, reason=reason) from failure

    def log_paths(self) -> list[Path]:
        """Return the files of the table's log."""
        log = self._table.path / "_delta_log"
        return [*sorted(path for path in log.iterdir() if path.is_file()), log, self._table.path]

    def rows(self, choice: RowFilter, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return all such rows as plain values."""
        found: list[dict[str, Any]] = self.read(choice, columns).to_pylist()
        return found
