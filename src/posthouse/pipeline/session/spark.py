"""The Spark session of this process, the posthouse package on its workers, and tasks that run there.

There is one session per process, with every setting the pipeline relies on; a session that already runs is used
unchanged. It is a local Spark, a cluster, the one that spark-submit has started, or a Spark Connect server (sc://).
Environment variables are set before the JVM starts because it inherits them. Workers receive a zip of posthouse; they
must have the binary dependencies (pyarrow, adbc, blake3, msgspec, PyNaCl). A PosthouseError in a worker returns to
the driver as a value and is raised there with its code and hint; any other exception makes Spark retry the task.
Workers import this module, so it imports nothing heavy, and no task uses the RDD API, which Connect lacks.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import posthouse
from posthouse.extras import install_hint
from posthouse.files import home_directory, open_locked
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.session.class_sharing import make_when_done, sharing_options
from posthouse.pipeline.session.java import Java, find_java, java_home_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_EXCLUDED = ("__pycache__",)


def ship_package(spark: SparkSession) -> None:
    """Send the posthouse package to the workers; the zip stays until this process exits, for workers that join late."""
    spark.addArtifact(str(zip_package(Path(scratch_directory()) / "posthouse.zip")), pyfile=True)


def zip_package(target: Path) -> Path:
    """Write the posthouse package to a zip that Python can import from."""
    root = Path(posthouse.__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not set(path.parts) & set(_EXCLUDED):
                archive.write(path, Path("posthouse") / path.relative_to(root))
    return target


_SCRATCH = "posthouse-scratch-"
_CONNECT = "sc://"
_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it: it has started the JVM and chosen the master
_LOCAL_PARTITIONS = 8  # per shuffle on one machine: Spark's default of 200 costs more than it saves
# Workers import this module from a zip that they name by a relative path.
_QUIET_LOG = Path(__file__).absolute().with_name("log4j2.properties")
_LOG_OPTION = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
#: Use only the first compiler. For it alone, Java would reserve 48 MB of compiled code, too little for a long report.
_BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
#: Settings that every kind of session takes while it runs.
_RUNTIME = {
    # Without this, Spark fails every read of a source that accepts filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    # The default for Parquet timestamps is INT96, which other readers of the lake do not support.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise Spark replaces ${env:NAME} in SQL by a variable of the process before the query guard sees the text.
    "spark.sql.variable.substitute": "false",
    # Keep the day as text if an older posthouse stored it only in the path of a file, as in day=2026-11-15.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Broadcast only tables whose size is known after a shuffle. File sizes mislead: the files of a long history may be
    # compressed a hundredfold, and a table broadcast by its file size did not fit into the driver's memory.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "4m",
}
_CONFIGURATION = _RUNTIME | {
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The keys of S3 reach executors through their environment; nothing that Spark shows may hold them.
    "spark.redaction.regex": "(?i)secret|password|token|access[._]?key",
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
    python: str | None = None,
    executor_environ: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    uses_cds: bool = True,
    is_brief: bool = False,
) -> SparkSession:
    """Return the Spark session of this process; start it if none runs.

    `settings` are Spark's own and override those of the pipeline. `python` is the program of the executors, by default
    that of PYSPARK_PYTHON, else this one. `executor_environ` are variables for the executors of a cluster. `uses_cds`
    lets Java map its classes from an archive; `is_brief` disables the compiler that pays off only after minutes.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:  # the last one used in this thread, perhaps that of a single query
        return running if is_connect(running) else SparkSession.builder.getOrCreate()
    given = dict(settings or {})
    if master.startswith(_CONNECT):
        return _connect(master, given)
    is_local = is_local_master(master) and _SUBMITTED not in environ
    chosen = dict(_CONFIGURATION)
    builder = SparkSession.builder.appName("posthouse")
    if _SUBMITTED not in environ:
        java = find_java(environ)
        builder = builder.master(master)
        chosen |= _sizes(driver_memory_mb, shuffle_partitions or (_LOCAL_PARTITIONS if is_local else None))
        chosen |= _java_options(java, uses_cds=uses_cds, is_brief=is_brief)
        _prepare_process(java, _executor_python(environ, python, given), is_local=is_local)
    if is_local:
        scratch = scratch_directory()
        chosen["spark.sql.warehouse.dir"] = f"{scratch}/warehouse"  # by default Spark makes it in the current directory
        if "SPARK_LOCAL_DIRS" not in environ:
            chosen["spark.local.dir"] = scratch
    if not is_local:
        chosen |= {f"spark.executorEnv.{name}": value for name, value in (executor_environ or {}).items()}
    for name, value in (chosen | given).items():
        builder = builder.config(name, value)
    spark = _start(builder)
    if not is_local:
        ship_package(spark)
    return spark


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server, which has its own Java, Python and environment."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
        for name, value in (_RUNTIME | dict(settings)).items():
            spark.conf.set(name, value)
        ship_package(spark)
    except (PySparkException, ImportError, OSError) as failure:
        hint = install_hint("connect") if isinstance(failure, ImportError) else None
        raise error("spark_not_started", hint=hint, reason=str(failure).partition("\n")[0]) from failure
    return spark


def is_local_master(master: str) -> bool:
    """Return True if driver and workers are one process on this machine."""
    return _LOCAL.fullmatch(master) is not None


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of a Spark Connect server, which has no JVM in this process."""
    return not hasattr(spark, "_jsparkSession")


def is_on_this_machine(spark: SparkSession) -> bool:
    """Return True if the workers of a session see the files of this process."""
    return not is_connect(spark) and is_local_master(str(spark.conf.get("spark.master")))


def register(spark: SparkSession) -> None:
    """Make format("posthouse") work in any session, for batches, streams and writes; calling it again is harmless.

    Without the setting Spark fails every read of a source that accepts filters. Workers of a cluster get the package.
    """
    from posthouse.pipeline.connector.data_source import register_source

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    if not is_on_this_machine(spark):
        ship_package(spark)
    register_source(spark)


def _executor_python(environ: Mapping[str, str], python: str | None, settings: Mapping[str, str]) -> str:
    named = settings.get("spark.pyspark.python") or python or environ.get("PYSPARK_PYTHON")
    return named or sys.executable


def scratch_directory() -> str:
    """Create a private directory; it is deleted when this process ends or, after a kill, by the next call."""
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # its process lives, or it belongs to another user
            os.close(open_locked(left, wait=False, create=False))
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{_SCRATCH}"))  # under a name that no other process uses
    open_locked(made, create=False)  # until this process ends
    folder = made.rename(place / made.name.removeprefix("."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


def _start(builder: SparkSession.Builder) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as failure:
        raise error("spark_not_started", reason=spark_reason(failure)) from failure
    spark.sparkContext.setLogLevel("FATAL")
    _silence_query_errors()
    return spark


def _silence_query_errors() -> None:
    """Keep pyspark from writing the stack trace of a wrong query to stderr; the query raises the error anyway."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")


def spark_reason(failure: Exception) -> str:
    """Return the cause of a failure of Spark in one line: the innermost exception of Java, without class and state."""
    lines = [line.strip() for line in str(failure).strip().splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    own = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # Py4J: ": class: message"
    found = (causes[-1:] or own[:1] or lines[:1] or [type(failure).__name__])[0]
    return _JAVA_CLASS.sub("", found).partition(" SQLSTATE")[0].rstrip()


_HEAP_FULL = 52  # Spark's exit code after an OutOfMemoryError
_END_S = 2.0  # from the loss of a connection to Java until its process is gone


def stopped_spark(failure: BaseException) -> PosthouseError | None:
    """Return spark_stopped, with the reason, if a call of Spark failed because Java has ended; else None.

    Return None also for a Java that another process has started.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    java = getattr(SparkContext._gateway, "proc", None)
    if java is None:
        return None
    is_lost = isinstance(failure, Py4JError | OSError) and not isinstance(failure, Py4JJavaError)
    try:
        code = java.wait(_END_S if is_lost else 0)
    except subprocess.TimeoutExpired:
        return None
    return error("spark_stopped", reason=_ending(code))


def _ending(code: int) -> str:
    """Return in words how Java ended, by the exit code of its process."""
    if code == -signal.SIGKILL:
        return "it was killed (SIGKILL), which the system does when memory is short"
    if code < 0:
        return f"signal {-code} ended it"
    return "its heap was full" if code == _HEAP_FULL else f"its exit code is {code}"


def _sizes(driver_memory_mb: int, shuffle_partitions: int | None) -> dict[str, str]:
    sizes = {"spark.driver.memory": f"{driver_memory_mb}m", "spark.driver.maxResultSize": f"{driver_memory_mb}m"}
    if shuffle_partitions is not None:
        sizes["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    return sizes


def _java_options(java: Java, *, uses_cds: bool, is_brief: bool) -> dict[str, str]:
    """Return the options of Java; without an archive of classes, have one made when this process ends."""
    options = [_LOG_OPTION, *(_BRIEF if is_brief else ())]
    if uses_cds:
        shared = sharing_options(java.program)
        options += shared
        if not shared:
            make_when_done(java.program)
    return {"spark.driver.extraJavaOptions": " ".join(options)}


def _prepare_process(java: Java, python: str, *, is_local: bool) -> None:
    os.environ.update(java_environment(java))
    os.environ["PYSPARK_PYTHON"] = python
    if is_local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def java_environment(java: Java) -> dict[str, str]:
    """Return the environment variables that make Spark's scripts start this Java."""
    return {"JAVA_HOME": str(java_home_of(java.program, home_directory()))}


#: For frames of a few thousand rows in one partition: planning and compiling them costs more than computing them.
_SMALL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@functools.lru_cache(maxsize=1)
def small_session(spark: SparkSession) -> SparkSession:
    """Return another session on the same Spark that computes small frames with little overhead.

    A session of Spark Connect is returned unchanged: another one would be another client of the server.
    """
    if is_connect(spark):
        return spark
    session = spark.newSession()
    for name, value in _SMALL.items():
        session.conf.set(name, value)
    return session


T = TypeVar("T")
R = TypeVar("R")
_RESULT = "task bigint, result binary"
_CAUSED_BY = "Caused by: "
_NO_PROGRAM = re.compile(r'Cannot run program "[^"]*"')
_PYTHON_ERROR = re.compile(r"[A-Za-z_]*(Error|Exception): ")  # without the dots of a Java class


def run_in_workers(spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run `work` once per task and return the results in order; raise the first PosthouseError.

    Raise workers_failed if a task could not run at all, after Spark has tried it several times.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not tasks:
        return []
    given = list(tasks)

    def run(indexes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from posthouse.pipeline.session.spark import run_tasks

        return run_tasks(work, given, indexes)

    try:
        rows = spark.range(0, len(given), 1, len(given)).mapInArrow(run, _RESULT).collect()
    except (PySparkException, Py4JError) as failure:
        stopped = stopped_spark(failure)
        raise stopped or error("workers_failed", reason=worker_reason(str(failure))) from failure
    results: list[R | PosthouseError] = [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.task)]
    for result in results:
        if isinstance(result, PosthouseError):
            raise result
    return [result for result in results if not isinstance(result, PosthouseError)]


def worker_reason(text: str) -> str:
    """Return the cause of a failure from Spark's report: a missing program, or the exception of Python or Java."""
    if missing := _NO_PROGRAM.search(text):
        return missing[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    errors = [line for line in lines if _PYTHON_ERROR.match(line)]
    return (errors[-1:] or causes or lines or ["no reason given"])[0]


def run_tasks(
    work: Callable[[T], R], tasks: Sequence[T], indexes: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the tasks that a worker was given by index and yield their results, pickled."""
    import pyarrow as pa

    for index in (index for batch in indexes for index in batch.column(0).to_pylist()):
        result = pickle.dumps(_attempt(work, tasks[index]))
        yield pa.RecordBatch.from_arrays([pa.array([index], pa.int64()), pa.array([result])], names=["task", "result"])


def _attempt(work: Callable[[T], R], task: T) -> R | PosthouseError:
    try:
        return work(task)
    except PosthouseError as failure:
        return failure
