"""A standalone cluster: a master and two workers as real processes, without our package in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pyspark

import posthouse
from posthouse.pipeline.session.java import find_java
from posthouse.pipeline.session.session import java_environment

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_SOURCE = Path(posthouse.__path__[0]).parent  # what the workers must not find
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Yield the URL of a master that has two workers of one core each."""
    environ = _environment(folder)
    with ExitStack() as running:
        master = running.enter_context(
            _process(environ, _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        )
        url = _wait_for(master, "Starting Spark master at ").split()[-1]
        for number in range(2):
            place = folder / f"worker{number}"
            given = (
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "600m",
                "--webui-port",
                "0",
                "--work-dir",
                str(place),
            )
            worker = running.enter_context(_process(environ, _WORKER, *given, url))
            _wait_for(worker, "Successfully registered with master")
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
def _process(environ: dict[str, str], *command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([str(_CLASS), *command], env=environ, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        if process.stderr is not None:
            process.stderr.close()


def _wait_for(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    stream: IO[str] = process.stderr
    for line in stream:
        if words in line:
            return line.strip()
    raise AssertionError(f"the process ended before it said {words!r}")
