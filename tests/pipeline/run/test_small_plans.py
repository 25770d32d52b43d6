"""Plans of small frames: made once, right for every input, and nothing of the input stays on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from posthouse.pipeline.run.small_plans import replace_batches, small_plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def totals(inputs: Mapping[str, DataFrame]) -> DataFrame:
    joined = inputs["amounts"].join(inputs["names"], "id")
    return joined.groupBy("name").agg(f.sum("amount").alias("total"))


def shuffled(inputs: Mapping[str, DataFrame]) -> DataFrame:
    return totals({name: rows.repartition(2) for name, rows in inputs.items()})


@pytest.mark.parametrize(("function", "is_kept"), [(totals, True), (shuffled, False)])
def test_each_computation_sees_its_own_rows_and_only_safe_plans_are_kept(
    spark: SparkSession, function: object, is_kept: bool
) -> None:
    plans = small_plans(spark)
    name = f"test_{is_kept}"
    for factor in (1, 10):
        amounts = pa.table({"id": [1, 2, 1], "amount": [1 * factor, 2 * factor, 3 * factor]})
        names = pa.table({"id": [1, 2], "name": ["a", "b"]})
        rows = plans.compute(name, function, {"amounts": amounts, "names": names})  # type: ignore[arg-type]
        assert sorted(map(tuple, (row.values() for row in rows.to_pylist()))) == [("a", 4 * factor), ("b", 2 * factor)]
    assert any(key[0] == name for key in plans._plans) is is_kept
    assert plans._folder is not None
    assert list(plans._folder.iterdir()) == []


def test_files_with_the_rows_of_a_plan_are_readable_by_their_owner_only(spark: SparkSession) -> None:
    plans, modes = small_plans(spark), list[int]()
    assert plans._folder is not None
    folder = plans._folder

    def note_modes(inputs: Mapping[str, DataFrame]) -> DataFrame:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir())
        return inputs["amounts"]

    before = os.umask(0)
    try:
        plans.compute("modes", note_modes, {"amounts": pa.table({"id": [1]})})
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_source_of_a_plan_reads_its_whole_input_so_that_spark_keeps_the_worker(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2]})
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)
    unread = iter(pa.table({"index": [0, 1]}).to_batches(max_chunksize=1))
    found = pa.Table.from_batches(replace_batches(unread, str(tmp_path / "rows")))
    assert (found, list(unread)) == (rows, [])
