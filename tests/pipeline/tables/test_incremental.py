"""A lake brought up to date run by run, wherever its runs happened to cut history, equals one that was made at once.

Everything is real: stores that the product has written, the runner, Delta tables. Two histories of different seeds,
each cut twice, lie in one lake, which halves the work; there are more and longer ones with POSTHOUSE_FAULTS=full.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.tables.bronze import COPIES
from posthouse.pipeline.tables.catalog import TABLES
from tests.faults.campaign import rounds
from tests.pipeline.tables.moments import write_moments

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.faults]
_SEEDS = range(1, 1 + rounds(1, 5))
_MESSAGES = rounds(80, 300)  # from 80 on the relay refuses some
Contents = dict[str, Counter[str]]


def run(spark: SparkSession, lake: Lake, stores: Sequence[Path]) -> None:
    bring_up_to_date(spark, lake, [Access(str(path)) for path in stores])


def contents(spark: SparkSession, lake: Lake) -> Contents:
    """Return all rows of every table, as bags."""
    names = [*COPIES, *(table.name for table in TABLES)]
    return {name: Counter(repr(tuple(row)) for row in lake.rows(spark, name).collect()) for name in names}


@pytest.mark.parametrize("seed", _SEEDS)
def test_every_table_kept_up_to_date_run_by_run_equals_the_one_made_at_once(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    moments = asyncio.run(write_moments(tmp_path, seed, _MESSAGES))
    kept, made = Lake(tmp_path / "kept"), Lake(tmp_path / "made")
    for stores in moments.runs:
        run(spark, kept, stores)
    run(spark, made, moments.everything)
    expected = contents(spark, made)
    silent = [name for name, rows in expected.items() if not rows]
    assert not silent or seed != _SEEDS[0], f"the histories say nothing about {silent}"
    assert contents(spark, kept) == expected
