"""The session that every part of the pipeline shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_a_process_has_one_session(spark: SparkSession) -> None:
    assert spark_session("local[1]") is spark


def test_times_are_utc_and_parquet_keeps_them_in_microseconds(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
