"""A lake brought up to date run by run, wherever its runs happened to cut history, equals one that was made at once.

The runs collect their few rows; the one that makes everything computes and writes as if there were millions.
Everything is real: stores that the product has written, the runner, Delta tables. Two histories, each cut twice, lie in
one lake, which halves the work; there are more and longer ones with POSTHOUSE_FAULTS=full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from posthouse.files import private_dir
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import arrow_schema, declared_names
from posthouse.pipeline.run import derive
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.tables.bronze import COPIES
from posthouse.pipeline.tables.catalog import TABLES
from posthouse.pipeline.tables.declaration import is_time
from tests.faults.campaign import rounds
from tests.pipeline.run.lakes import table_rows
from tests.pipeline.tables.moments import write_moments
from tests.pipeline.tables.other_tools import TOOLS, bag, run_snippet, snippets

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.faults]
_SEEDS = range(1, 1 + rounds(1, 5))
_MESSAGES = rounds(80, 300)  # from 80 on the relay refuses some


def run(spark: SparkSession, lake: Lake, stores: Sequence[Path]) -> None:
    bring_up_to_date(spark, lake, [Access(str(path)) for path in stores])


class Lakes(NamedTuple):
    """The same history in a lake that several runs made, and in one that a single run made."""

    kept: Lake
    made: Lake
    stores: Sequence[Path]
    is_first: bool


@pytest.fixture(scope="module", params=_SEEDS)
def lakes(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    folder = private_dir(tmp_path_factory.mktemp("incremental") / "lakes")
    moments = asyncio.run(write_moments(folder, request.param, _MESSAGES))
    kept, made = Lake(folder / "kept"), Lake(folder / "made")
    for stores in moments.runs:
        run(spark, kept, stores)
    with pytest.MonkeyPatch.context() as patch:
        for bound in ("SMALL_ROWS", "SMALL_TABLE_ROWS"):
            patch.setattr(derive, bound, 0)
        run(spark, made, moments.everything)
    return Lakes(kept, made, moments.runs[-1], request.param == _SEEDS[0])


def test_every_table_kept_up_to_date_run_by_run_equals_the_one_made_at_once(lakes: Lakes) -> None:
    expected = table_rows(lakes.made, *COPIES)
    silent = [name for name, rows in expected.items() if not rows]
    assert not silent or not lakes.is_first, f"the histories say nothing about {silent}"
    assert table_rows(lakes.kept, *COPIES) == expected


def test_a_run_without_new_rows_changes_no_table_of_any_store(spark: SparkSession, lakes: Lakes) -> None:
    steps: list[RunStep] = []
    bring_up_to_date(spark, lakes.kept, [Access(str(path)) for path in lakes.stores], on_step=steps.append)
    assert {step.step for step in steps} == {"unchanged"}


def test_every_tool_reads_every_table_as_spark_does(spark: SparkSession, lakes: Lakes) -> None:
    differing = []
    for name in declared_names():
        schema = arrow_schema(name)
        expected = bag(lakes.kept.rows(spark, name).toArrow(), schema)
        for tool, read in TOOLS.items():
            if bag(read(lakes.kept.path / name), schema) != expected:
                differing.append((tool, name))
    assert differing == []


def test_the_programs_of_the_how_to_count_the_states_that_spark_counts(spark: SparkSession, lakes: Lakes) -> None:
    deliveries = lakes.kept.table(spark, "silver_deliveries").where("NOT lost_by_restore")
    expected = {row["state"]: row["count"] for row in deliveries.groupBy("state").count().collect()}
    found = [run_snippet(program, lakes.kept.path) for program in snippets()]
    assert found == [expected, expected, expected]
    assert len(expected) > 2


def test_times_of_the_current_state_are_timestamps_beside_their_nanoseconds(lakes: Lakes) -> None:
    for table in TABLES:
        fields = {field.name: field.type for field in arrow_schema(table.name)}
        moments = [name for name in fields if is_time(name)]
        rows = TOOLS["delta-rs"](lakes.kept.path / table.name)
        for name in moments:
            assert fields[name.removesuffix("_ns")] == pa.timestamp("us", "UTC"), (table.name, name)
            nanoseconds = rows.column(name).to_pylist()
            moment = rows.column(name.removesuffix("_ns")).cast(pa.int64()).to_pylist()
            assert [None if value is None else value // 1_000 for value in nanoseconds] == moment, (table.name, name)
