"""The Spark session of this process, our package on its workers, and tasks that run there.

There is one session per process, with every setting the pipeline relies on; a session that already runs is used as
it is. Environment variables are set before the JVM starts because it inherits them. On a cluster, a zip of posthouse
is sent to the workers; binary dependencies (pyarrow, adbc, blake3, msgspec, PyNaCl) and a shared place for the lake
belong to the cluster. A PosthouseError in a worker travels back as a value and is raised on the driver with its code
and hint; any other exception makes Spark retry the task. Workers import this module: keep it light.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import posthouse
from posthouse.files import home_directory
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.session.java import Java, find_java, java_home_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LEFT_OUT = ("__pycache__",)


def ship_package(spark: SparkSession) -> None:
    """Send our package to the workers of a session; the zip lies there as long as this process, for late workers."""
    folder = tempfile.mkdtemp(prefix="posthouse-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(str(zip_package(Path(folder) / "posthouse.zip")))


def zip_package(target: Path) -> Path:
    """Write our package into a zip that Python can import from."""
    root = Path(posthouse.__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not set(path.parts) & set(_LEFT_OUT):
                archive.write(path, Path("posthouse") / path.relative_to(root))
    return target


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


T = TypeVar("T")
R = TypeVar("R")


def run_in_workers(spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run `work` once per task and return the results in order; raise the first refusal."""
    if not tasks:
        return []
    results = spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: _attempt(work, task)).collect()
    for result in results:
        if isinstance(result, PosthouseError):
            raise result
    return [result for result in results if not isinstance(result, PosthouseError)]


def _attempt(work: Callable[[T], R], task: T) -> R | PosthouseError:
    try:
        return work(task)
    except PosthouseError as failure:
        return failure
