"""A lake of a store that moves to PostgreSQL and back: it goes on at its cursors, and its tables stay the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.model.clock import FakeClock, SystemClock
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.demo.cast import make_cast
from posthouse.pipeline.demo.demo_history import START_NS
from posthouse.pipeline.demo.relay_scene import play_relay
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.relay.engine import EngineSettings, RelayEngine
from tests.faults.child import Child
from tests.pipeline.run.lakes import check_seals, table_rows
from tests.relay.accept.answers import accepted
from tests.relay.authors import Author

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]
CLOCK = SystemClock()
ALICE = Author(1, CLOCK)
NOTES = 30
BATCH_ROWS = 50  # several ranges for each feed
_PATIENCE_S = 600


def run(spark: SparkSession, lake: Lake, source: str | Path) -> list[RunStep]:
    steps: list[RunStep] = []
    access = [Access(str(source))]
    bring_up_to_date(spark, lake, access, clock=CLOCK, batch_rows=BATCH_ROWS, on_step=steps.append)
    return steps


def is_unchanged(steps: Sequence[RunStep]) -> bool:
    """Return True if a run has read nothing and written nothing."""
    return {step.step for step in steps} == {"unchanged"}


def move(folder: Path, source: str | Path, target: str | Path) -> None:
    words = ("relay", "migrate", "--from", str(source), "--to", str(target), "--json")
    with Child("posthouse.cli.main", *words, env={"POSTHOUSE_HOME": str(folder / "home")}) as child:
        assert child.wait(_PATIENCE_S) == 0, child.errors


async def publish_notes(folder: Path, store: str) -> None:
    """Publish notes at a relay on a database."""
    core = await RelayEngine.start(EngineSettings(folder, Author(99).node, store=store), CLOCK)
    for number in range(NOTES):
        accepted(await core.accept(ALICE.raw(1, content=f"note {number}")))
    await core.close()


def rows_of(lake: Lake) -> dict[str, Counter[str]]:
    return table_rows(lake, "bronze_journal", "bronze_events")


def test_lake_goes_on_after_its_store_moved_and_equals_lakes_of_the_database_and_of_the_file(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    file = tmp_path / "relay" / "relay.db"
    asyncio.run(play_relay(file.parent, FakeClock(wall_ns=START_NS), make_cast(1, 4), 1, 20, 1))
    kept, of_database, of_file = (Lake(tmp_path / name) for name in ("kept", "of database", "of file"))
    run(spark, kept, file)
    before = rows_of(kept)

    move(tmp_path, file, database)
    assert is_unchanged(run(spark, kept, database))
    asyncio.run(publish_notes(file.parent, database))
    copied = {step.table: step.rows for step in run(spark, kept, database) if step.step == "copied"}
    assert copied["bronze_events"] == NOTES and NOTES <= copied["bronze_journal"] < before["bronze_journal"].total()
    run(spark, of_database, database)

    move(tmp_path, database, file)
    assert is_unchanged(run(spark, kept, file))
    run(spark, of_file, file)
    assert rows_of(kept) == rows_of(of_database) == rows_of(of_file)
    assert all(check_seals(lake) for lake in (kept, of_database, of_file))
