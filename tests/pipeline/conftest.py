"""One Spark and one S3 server for all tests of the pipeline: they are one group of the test run, on one worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.session import spark_session
from tests.pipeline.quick_start import NO_COMPILING, QUICK_START
from tests.pipeline.s3 import free_port, make_bucket, s3_environment, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def s3_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[SparkSession]:
    """A real Spark on this machine, small; a test that uses it carries the mark xdist_group("spark")."""
    place = tmp_path_factory.mktemp("spark")
    for_workers = {f"spark.executorEnv.{name}": value for name, value in s3_environment(s3_port).items()}
    session = spark_session(
        "local[2]",
        shuffle_partitions=2,
        settings=for_workers
        | NO_COMPILING
        | {
            "spark.driver.defaultJavaOptions": QUICK_START,
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[int]:
    with s3_server(s3_port, tmp_path_factory.mktemp("s3") / "log"):
        yield s3_port


@pytest.fixture
def bucket(s3_process: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, as s3://NAME, that this process can open; a home of its own for what stays on the host."""
    for name, value in s3_environment(s3_process).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "home"))
    name = f"b{os.urandom(8).hex()}"
    make_bucket(s3_process, name)
    return f"s3://{name}"
