"""Files that Spark wrote: all rows arrive in the table's directory, or the write is refused."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake.data_file import Periods
from posthouse.pipeline.lake.frame_files import write_frame
from posthouse.pipeline.lake.storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_all_rows_arrive_and_no_rows_make_no_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(300).selectExpr("id", "cast(date_add(date'2026-01-01', cast(id AS int)) AS string) AS day")
    files = write_frame(LocalStorage(tmp_path / "t"), rows.repartition(1), Periods.before("2026-10-27"))
    by_month = {(f"2026-0{month}-01", last_of(month)) for month in range(1, 9)}
    by_day = {(day, day) for day in (f"2026-{month}-{number:02}" for month in ("09", "10") for number in range(1, 32))}
    assert sum(file.rows for file in files) == 300
    assert by_month < {file.days for file in files} < by_month | by_day
    assert len(files) == 8 + 30 + 27
    assert write_frame(LocalStorage(tmp_path / "t"), rows.where("id > 900"), Periods.before("2026-10-27")) == []


def last_of(month: int) -> str:
    return (date(2026, month + 1, 1) - timedelta(1)).isoformat()


def test_rows_on_the_disk_of_a_worker_are_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not share the lake's disk leaves nothing in the staging directory that the driver sees."""
    rows = spark.range(10).selectExpr("id", "cast(id % 2 AS string) AS day").repartition(1)

    def see_one_day(staging: Path, pattern: str) -> list[Path]:
        return [path for path in glob(staging, pattern) if "_period=0" in str(path)]

    glob = Path.rglob
    monkeypatch.setattr(Path, "rglob", see_one_day)
    with pytest.raises(PosthouseError) as refused:
        write_frame(LocalStorage(tmp_path / "t"), rows, Periods())
    fields = refused.value.fields
    assert (refused.value.code, fields["expected"], fields["found"]) == ("lake_files_missing", 10, 5)
