"""The measurements of the pipeline run and judge themselves; how fast this machine is, is not tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import pipeline_growth
from bench.pipeline import REQUIRED, measure_with
from bench.pipeline_stores import make_store
from bench.scales import ROW_BYTES, PipelineScale
from posthouse.journal.read import read_after
from posthouse.model.clock import SystemClock
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier, OnStep, ignore_step
from posthouse.sqlite.connection import open_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy_only(spark: SparkSession, lake: Lake, sources: Sequence[Access], on_step: OnStep = ignore_step) -> None:
    """Run without the tables above bronze: the report has the same figures, and tests of runs derive tables."""
    Copier(spark, lake, sources[0], SystemClock(), 1_000, on_step).copy()


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_report_holds_every_figure_that_something_is_required_of(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_growth, "bring_up_to_date", copy_only)
    monkeypatch.setattr(pipeline_growth, "measure_query", lambda _lake: {"seconds": 1.0, "cpu_seconds": 1.0})
    told: list[str] = []
    scale = PipelineScale(rows=2_000, growth_rows=100, new_runs=1, events=100, rounds=1)
    report = measure_with(spark, tmp_path, scale, told.append)
    assert [each["name"] for each in report["required"]] == [each.name for each in REQUIRED]
    assert report["bronze"]["rows_per_s"] > 0 and report["growth"]["times"] > 0
    assert [each["rows"] for each in report["growth"]["sizes"]] == [100, 1_000]
    assert all(report["growth"]["sizes"][1]["memory_mib"].values())
    assert len(told) == 8


def test_the_measured_records_have_the_size_that_is_said(tmp_path: Path) -> None:
    db = open_reader(make_store(tmp_path / "relay", 50))
    try:
        records = read_after(db, 0, 100)
    finally:
        db.close()
    sizes = {sum(len(text or "") for text in record[2:]) + 16 for record in records}
    assert (len(records), sizes) == (50, {ROW_BYTES})


def test_growth_is_between_a_history_and_ten_times_as_much() -> None:
    assert pipeline_growth.largest_factor((300, 1_000, 3_000), (1.0, 4.0, 9.0)) == 9.0
    assert pipeline_growth.largest_factor((100, 1_000, 10_000), (1.0, 4.0, 20.0)) == 5.0
    assert pipeline_growth.largest_factor((100, 200), (1.0, 3.0)) == 3.0
