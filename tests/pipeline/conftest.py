"""One Spark for all tests of the pipeline: they are one group of the test run, and share its one worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.session import spark_session
from tests.pipeline.quick_start import QUICK_START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark on this machine, small; a test that uses it carries the mark xdist_group("spark")."""
    place = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2]",
        shuffle_partitions=2,
        settings={
            "spark.driver.defaultJavaOptions": QUICK_START,
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        },
    )
    yield session
    session.stop()
