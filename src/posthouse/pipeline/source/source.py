"""The data source and sink "posthouse" for Spark.

    spark.dataSource.register(PosthouseSource)
    spark.read.format("posthouse").option("url", "/path/relay.db").option("feed", "events").load()

Options of a read: url, feed (default journal), columns (a,b,c), partitionRows; token and tlsCa for a relay;
maxRowsPerBatch for a stream. Spark makes this object in processes of its own and sends readers to workers by pickle:
nothing is opened before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from posthouse.pipeline.source.plan import ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PosthouseSource(DataSource):
    """Journals of stores and relays, and a way back to a relay."""

    @classmethod
    def name(cls) -> str:
        return "posthouse"

    def schema(self) -> StructType:
        """Return the columns of the feed that the options name."""
        return ReadPlan.of(self.options).struct()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        from posthouse.pipeline.source.batch import BatchReader

        return BatchReader(ReadPlan.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader."""
        from posthouse.pipeline.source.stream import StreamReader

        return StreamReader(ReadPlan.of(self.options), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the sink's writer."""
        from posthouse.pipeline.sink import sink_writer

        return sink_writer(self.options, schema, overwrite)


def register_source(spark: SparkSession) -> None:
    """Let a session know the format "posthouse"."""
    spark.dataSource.register(PosthouseSource)
