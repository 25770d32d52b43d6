"""The Spark session of this process, the posthouse package on its workers, and tasks that run there.

There is one session per process, with every setting the pipeline relies on; a session that already runs is used
unchanged. Environment variables are set before the JVM starts because it inherits them. A cluster receives a zip of
posthouse; it must provide the binary dependencies (pyarrow, adbc, blake3, msgspec, PyNaCl) and shared storage for the
lake. A PosthouseError in a worker returns to the driver as a value and is raised there with its code and hint; any
other exception makes Spark retry the task. Workers import this module, so it imports nothing heavy.
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


_EXCLUDED = ("__pycache__",)


def ship_package(spark: SparkSession) -> None:
    """Send the posthouse package to the workers; the zip stays until this process exits, for workers that join late."""
    folder = tempfile.mkdtemp(prefix="posthouse-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(str(zip_package(Path(folder) / "posthouse.zip")))


def zip_package(target: Path) -> Path:
    """Write the posthouse package to a zip that Python can import from."""
    root = Path(posthouse.__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not set(path.parts) & set(_EXCLUDED):
                archive.write(path, Path("posthouse") / path.relative_to(root))
    return target


_LOCAL_PARTITIONS = 8  # per shuffle on one machine: Spark's default of 200 costs more than it saves
_QUIET_LOG = Path(__file__).with_name("log4j2.properties")
_CONFIGURATION = {
    # Without this, every read of a source that accepts filters fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    # The default for Parquet timestamps is INT96, which other readers of the lake do not support.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Keep the partition value in day=2026-11-15 as text.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Broadcast only tables whose size is known after a shuffle. File sizes mislead: the files of a long history may be
    # compressed a hundredfold, and a table broadcast by its file size did not fit into the driver's memory.
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
    """Return the Spark session of this process; start it on the first suitable Java if none runs."""
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
    if is_local and "SPARK_LOCAL_DIRS" not in environ:
        chosen.setdefault("spark.local.dir", _scratch_directory())
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = _start(builder)
    if not is_local:
        ship_package(spark)
    return spark


def _scratch_directory() -> str:
    """Create a private directory for what Spark spills and shuffles; it goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="posthouse-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
    """Return the environment variables that make Spark's scripts start this Java."""
    return {"JAVA_HOME": str(java_home_of(java.program, home_directory()))}


T = TypeVar("T")
R = TypeVar("R")


def run_in_workers(spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run `work` once per task and return the results in order; raise the first PosthouseError."""
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
