"""The session that every part of the pipeline shares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from posthouse.pipeline.session import spark as spark_module
from posthouse.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_a_process_has_one_session(spark: SparkSession) -> None:
    assert spark_session("local[1]") is spark


def test_times_are_utc_and_parquet_keeps_them_in_microseconds(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def test_other_users_cannot_read_what_spark_spills(spark: SparkSession) -> None:
    scratch = Path(str(spark.conf.get("spark.local.dir")))
    spark.range(1_000).repartition(3).groupBy(f.col("id") % 7).count().collect()
    files = [path for path in scratch.rglob("*") if path.is_file() and path.suffix in (".data", ".index")]
    assert files, "the shuffle left no file to look at"
    assert [oct(path.stat().st_mode) for path in files if path.stat().st_mode & 0o077] == []


def test_scratch_directory_of_a_session_is_private() -> None:
    folder = Path(spark_module._scratch_directory())
    assert folder.stat().st_mode & 0o777 == 0o700
