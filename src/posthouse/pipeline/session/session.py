"""The Spark session: one per process, started once, with every setting that the pipeline relies on.

The first Python stage of a session costs seconds, so whoever needs Spark shares this one. Environment variables are
set before the JVM starts because it inherits them; a Spark that already runs in this process is taken as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.files.home import home_directory
from posthouse.model.errors import error
from posthouse.pipeline.session.java import Java, find_java
from posthouse.pipeline.session.shim import java_home_of
from posthouse.pipeline.session.shipping import ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_PARTITIONS = 8  # of a shuffle on one machine; Spark's 200 cost more than they divide
_QUIET_LOG = Path(__file__).with_name("log4j2.properties")

_CONFIGURATION = {
    # Without it every read of a source that takes filters fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Parquet timestamps default to INT96, which other readers of the lake do not know.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # day=2026-11-15 stays the text it is.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Which table is small is known after it was shuffled, not from the size of its files: those of a long history may
    # shrink a hundredfold, and what was broadcast because of that did not fit into the driver's memory.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "4m",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def spark_session(
    master: str = "local[*]",
    *,
    driver_memory_mb: int = 1024,
    shuffle_partitions: int | None = None,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> SparkSession:
    """Return this process's Spark session, started on the best Java there is."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    is_local = master.startswith("local")
    _prepare_process(find_java(environ), is_local=is_local)
    builder = SparkSession.builder.appName("posthouse").master(master)
    if shuffle_partitions is None and is_local:
        shuffle_partitions = _LOCAL_PARTITIONS
    chosen = _CONFIGURATION | _sizes(driver_memory_mb, shuffle_partitions) | dict(settings or {})
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = _start(builder)
    if not is_local:
        ship_package(spark)
    return spark


def _start(builder: SparkSession.Builder) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as failure:
        raise error("spark_not_started", reason=str(failure).partition("\n")[0]) from failure
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def _sizes(driver_memory_mb: int, shuffle_partitions: int | None) -> dict[str, str]:
    sizes = {"spark.driver.memory": f"{driver_memory_mb}m", "spark.driver.maxResultSize": f"{driver_memory_mb}m"}
    if shuffle_partitions is not None:
        sizes["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    log = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
    return sizes | {"spark.driver.extraJavaOptions": log}


def _prepare_process(java: Java, *, is_local: bool) -> None:
    os.environ.update(java_environment(java))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def java_environment(java: Java) -> dict[str, str]:
    """Return what makes Spark's scripts start this Java."""
    return {"JAVA_HOME": str(java_home_of(java.program, home_directory()))}
