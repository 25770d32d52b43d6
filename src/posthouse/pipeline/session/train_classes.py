"""The program that makes the class archive: run Spark as the pipeline does, record the classes it loads, dump them.

    python -m posthouse.pipeline.session.train_classes JAVA_PROGRAM
The session does the same work as commands: parse SQL, read and write Parquet, aggregate, join, sort, run a Python stage
and return rows. Other classes are still loaded from the jars. One process at a time makes an archive; a process that
finds the lock taken, or the archive made, does nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.files import locked, private_dir
from posthouse.pipeline.session.class_sharing import archive_path, dump_archive
from posthouse.pipeline.session.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUESTION = """
WITH latest AS (SELECT *, row_number() OVER (PARTITION BY name ORDER BY seq DESC) AS place FROM facts)
SELECT name, day, count(*) AS n, sum(seq) AS total, max_by(body, seq) AS last, percentile(seq, 0.9) AS p90,
       count(DISTINCT seq) AS seqs, max(get_json_object(body, '$.a.b')) AS field,
       sum(CAST(seq AS DECIMAL(28, 9))) AS cost
FROM facts LEFT SEMI JOIN latest USING (name) WHERE seq > 1 AND body IS NOT NULL GROUP BY name, day
HAVING count(*) > 0 ORDER BY total DESC, name LIMIT 10"""


def make_archive(program: Path) -> None:
    """Make the archive for a Java program unless it exists or another process makes it."""
    archive = archive_path(program)
    private_dir(archive.parent)
    try:
        with locked(archive.with_suffix(".lock"), wait=False):
            if not archive.is_file():
                _make(program, archive)
    except BlockingIOError:
        return


def _make(program: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="posthouse-classes-") as folder:
        class_list = Path(folder) / "classes"
        environ = dict(os.environ) | {"JAVA_HOME": str(program.resolve().parent.parent)}
        spark = spark_session(
            "local[2]",
            settings={"spark.driver.defaultJavaOptions": f"-XX:DumpLoadedClassList={class_list}"},
            environ=environ,
            uses_cds=False,
        )
        context: Any = spark.sparkContext
        try:
            _work(spark, Path(folder))
            class_path = str(context._jvm.System.getProperty("java.class.path"))
        finally:
            spark.stop()
            context._gateway.proc.stdin.close()  # ends Java, which writes the list
            context._gateway.proc.wait()
        dump_archive(program, class_list, class_path, archive)


def _work(spark: SparkSession, folder: Path) -> None:
    """Use Spark as the commands of the pipeline do."""
    from pyspark.sql import functions as f

    seq = f.col("id")
    body = f.to_json(f.struct(f.struct(seq.alias("b")).alias("a"), f.array(f.lit("x")).alias("ids")))
    day = f.date_add(f.lit("1970-01-01").cast("date"), (seq % 3).cast("int")).cast("string")
    rows = spark.range(100).select(
        seq.alias("seq"), body.alias("body"), day.alias("day"), f.sha2(day, 256).alias("name")
    )
    rows.write.partitionBy("day").parquet(str(folder / "facts"))
    session = spark.newSession()
    schema = rows.select("seq", "body", "name", "day").schema
    facts = session.read.schema(schema).option("basePath", str(folder / "facts")).parquet(str(folder / "facts"))
    facts.createOrReplaceTempView("facts")
    parser: Any = session._jsparkSession
    parser.sessionState().sqlParser().parsePlan(_QUESTION)
    session.sql(_QUESTION).collect()
    facts.unionByName(facts).withColumn("id", f.explode(f.from_json(f.col("body"), "ids array<string>")["ids"])).count()

    def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    facts.repartition(2, "day").sortWithinPartitions("seq").mapInArrow(unchanged, schema).toArrow()


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]))
