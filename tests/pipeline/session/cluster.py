"""A standalone cluster: a master and two workers as real processes, without our package in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

import posthouse
from posthouse.pipeline.session.java import find_java
from posthouse.pipeline.session.session import java_environment

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_SOURCE = Path(posthouse.__path__[0]).parent  # what the workers must not find
_MEMORY = "1200m"  # an executor asks for 1 GB
_START_S, _LOOK_S = 120.0, 0.1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Yield the URL of a master that has two workers of one core each."""
    environ = _environment(folder)
    with ExitStack() as running:
        given = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = running.enter_context(_process(environ, folder / "master.log", _MASTER, *given))
        url = _wait_for(log, "Starting Spark master at ").split()[-1]
        for number in range(2):
            size = ("--host", "127.0.0.1", "--cores", "1", "--memory", _MEMORY, "--webui-port", "0")
            place = ("--work-dir", str(folder / f"worker{number}"))
            worker = _process(environ, folder / f"worker{number}.log", _WORKER, *size, *place, url)
            _wait_for(running.enter_context(worker), "Successfully registered with master")
        yield url


def _environment(folder: Path) -> dict[str, str]:
    log = folder / "log4j2.properties"
    log.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\nappender.c.type = Console\nappender.c.name = c\n"
        "appender.c.target = SYSTEM_ERR\nappender.c.layout.type = PatternLayout\nappender.c.layout.pattern = %m%n\n"
    )
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [each for each in sys.path if each != {str(_SOURCE)!r}]\n"
    )
    options = {
        "PYTHONPATH": str(folder / "site"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={log.as_uri()}",
        "PYSPARK_PYTHON": sys.executable,
    }
    return os.environ | java_environment(find_java()) | options


@contextmanager
def _process(environ: dict[str, str], log: Path, *command: str) -> Iterator[Path]:
    with log.open("w") as stream:
        process = subprocess.Popen([str(_CLASS), *command], env=environ, stderr=stream, stdout=stream)
    try:
        yield log
    finally:
        process.kill()
        process.wait(30)


def _wait_for(log: Path, words: str) -> str:
    """Return the line of a log that holds some words, once it is there."""
    for _ in range(round(_START_S / _LOOK_S)):
        for line in log.read_text().splitlines():
            if words in line:
                return line.strip()
        time.sleep(_LOOK_S)
    raise AssertionError(f"{log.name} never said {words!r}: {log.read_text()[-2000:]}")
