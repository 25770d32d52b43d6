"""A standalone cluster: a master and a worker as real processes, without our package in their environment.

The worker starts two executors, each a process with a directory of its own. Everything is small: the cluster shares a
machine with the tests. Its settings are flags and not a directory of settings, with which Java would not use its
class archive. What the processes said is part of the failure of whatever ran on them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

import posthouse
from posthouse.pipeline.session.class_sharing import sharing_options
from posthouse.pipeline.session.java import find_java
from posthouse.pipeline.session.spark import java_environment
from tests.pipeline.quick_start import NO_COMPILING

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_SOURCE = Path(posthouse.__path__[0]).parent  # what the workers must not find
EXECUTORS = 2
_MEMORY = "1g"  # the worker's offer
_EXECUTOR_MEMORY = "512m"  # what each executor asks of it: the least that Spark takes is 450 MB
_START_S, _LOOK_S, _END_S = 240.0, 0.1, 30.0
_TAIL_CHARS = 3_000
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # none of these JVMs lives long enough for more


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs: its URL, and the flags with which spark-submit uses it."""

    url: str
    flags: list[str]
    folder: Path

    def executors(self) -> int:
        """Return how many executors the worker has started."""
        return len(list(self.folder.glob("worker/app-*/*")))

    def logs(self) -> list[Path]:
        """Return what the processes of the cluster and its executors wrote."""
        return sorted([*self.folder.glob("*.log"), *self.folder.glob("worker/app-*/*/std*")])


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a cluster of a master and a worker with two cores; a failure shows their logs."""
    java_options = " ".join([_QUICK_START, *sharing_options(find_java().program)])
    environ = _environment(folder, java_options)
    try:
        with ExitStack() as running:
            given = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            master = running.enter_context(_process(environ, folder / "master.log", _MASTER, *given))
            url = master.wait_for("Starting Spark master at ").split()[-1]
            master.wait_for("New state: ALIVE")
            size = ("--host", "127.0.0.1", "--cores", str(EXECUTORS), "--memory", _MEMORY, "--webui-port", "0")
            place = ("--work-dir", str(folder / "worker"))
            worker = running.enter_context(_process(environ, folder / "worker.log", _WORKER, *size, *place, url))
            worker.wait_for("Successfully registered with master")
            yield Cluster(url, _flags(url, java_options), folder)
    except BaseException as failure:
        for log in sorted([*folder.glob("*.log"), *folder.glob("worker/app-*/*/stderr")]):
            failure.add_note(f"--- {log.relative_to(folder)}\n{log.read_text(errors='replace')[-_TAIL_CHARS:]}")
        raise


@dataclass(frozen=True)
class _Running:
    """One process of the cluster and where it writes what it does."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, words: str) -> str:
        """Return the line of the log that holds some words, once it is there."""
        for _ in range(round(_START_S / _LOOK_S)):
            for line in self.log.read_text().splitlines():
                if words in line:
                    return line.strip()
            assert self.process.poll() is None, f"{self.log.name}: ended with {self.process.returncode}"
            time.sleep(_LOOK_S)
        raise AssertionError(f"{self.log.name} never said {words!r}")


def _environment(folder: Path, java_options: str) -> dict[str, str]:
    """Return the environment of the cluster's processes, which makes them log."""
    log, site = folder / "log4j2.properties", folder / "site"
    log.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\nappender.c.type = Console\nappender.c.name = c\n"
        "appender.c.target = SYSTEM_ERR\nappender.c.layout.type = PatternLayout\nappender.c.layout.pattern = %m%n\n"
    )
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [each for each in sys.path if each != {str(_SOURCE)!r}]\n"
    )
    options = {
        "PYTHONPATH": str(site),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{java_options} -Dlog4j2.configurationFile={log.as_uri()}",
        "PYSPARK_PYTHON": sys.executable,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return inherited | java_environment(find_java()) | options


def _flags(url: str, java_options: str) -> list[str]:
    settings = {
        "spark.executor.cores": "1",
        "spark.executor.memory": _EXECUTOR_MEMORY,
        "spark.executor.extraJavaOptions": java_options,
        "spark.driver.defaultJavaOptions": java_options,
        "spark.sql.shuffle.partitions": "2",
        **NO_COMPILING,
    }
    return ["--master", url, *(f"--conf={name}={value}" for name, value in settings.items())]


@contextmanager
def _process(environ: dict[str, str], log: Path, *command: str) -> Iterator[_Running]:
    with log.open("w") as stream:
        process = subprocess.Popen([str(_CLASS), *command], env=environ, stderr=stream, stdout=stream)
    try:
        yield _Running(process, log)
    finally:
        process.terminate()  # a worker that is asked to end takes its executors along
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)
