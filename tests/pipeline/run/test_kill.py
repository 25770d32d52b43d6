"""kill -9 of the driver anywhere in a run over a growing history: nothing twice, nothing missing."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.tables.catalog import TABLES
from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.pipeline.quick_start import quick_environment
from tests.pipeline.run.lakes import check_seals, journal_rows, table_rows
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_S = 300  # Spark on a loaded machine takes its time
_STEPS = 2 + len(TABLES)  # the minimum of reported steps: two copies, then every table
_FIRST_S, _LATER_S = 15.0, 0.6  # a kill comes up to so much later: before the first step, between two of them


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.xdist_group("spark-programs")
def test_a_run_killed_anywhere_leaves_a_lake_that_the_next_one_completes(spark: SparkSession, tmp_path: Path) -> None:
    luck = chance("pipeline run")
    store, lake = GrowingStore(tmp_path / "relay"), Lake(tmp_path / "lake")
    for _ in range(rounds(1, 15)):
        store.grow(luck.randrange(200, 2_000))
        _run_and_kill(tmp_path, luck)
        _check_no_row_twice(spark, lake)
    bring_up_to_date(spark, lake, [Access(str(store.path))])
    assert [row[1] for row in journal_rows(spark, lake)] == store.records()
    check_seals(lake)
    kept = table_rows(lake)
    bring_up_to_date(spark, lake, [Access(str(store.path))], is_rebuild=True)
    assert table_rows(lake) == kept


def _run_and_kill(folder: Path, luck: Random) -> None:
    """Run until some steps are reported, and kill the run a little later."""
    given = ("--source", folder / "relay", "--lake", folder / "lake", "--master", "local[2]", "--json")
    env = {"POSTHOUSE_HOME": str(folder / "home"), "POSTHOUSE_PIPELINE_BATCH_ROWS": "700"} | quick_environment()
    steps = luck.randrange(_STEPS)
    with Child("posthouse.cli.main", "pipeline", "run", *given, env=env) as child:
        if steps:
            child.wait_lines(steps, _START_S)
        time.sleep(luck.uniform(0, _LATER_S if steps else _FIRST_S))


def _check_no_row_twice(spark: SparkSession, lake: Lake) -> None:
    if "bronze_journal" in lake.names():
        seqs = [row[1].seq for row in journal_rows(spark, lake)]
        assert seqs == list(range(1, len(seqs) + 1))
