"""What keeps a lake small: `pipeline compact`, and the settings of compaction and retention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posthouse.cli.output import Output
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.cli.pipeline_run import compact
from posthouse.files import private_dir
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.delta import Commit
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter, arrow_schema
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.lake_run import hold_lake
from posthouse.pipeline.run.upkeep import Upkeep, tidy_lake
from tests.pipeline.filled_lake import fill_lake
from tests.pipeline.stores import GrowingStore

_DAY_S, _HOUR_S = 86_400, 3_600
_ROWS = 200


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake whose bronze_journal has ten files."""
    store = GrowingStore(tmp_path / "relay")
    store.grow(_ROWS)
    found = Lake(private_dir(tmp_path / "lake"))
    fill_lake(found, store.path, rows_per_file=20)
    assert len(found.delta("bronze_journal").files()) == 10
    return found


def seqs(lake: Lake) -> list[int]:
    return [row["seq"] for row in BronzeScan(lake, "bronze_journal").rows(RowFilter(), ("seq",))]


def retention(lake: Lake, table: str) -> str:
    return str(lake.delta(table)._open().metadata().configuration["delta.logRetentionDuration"])


def test_compact_merges_the_files_of_every_table_and_keeps_every_row(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    compact(pipeline_options=PipelineOptions(lake=lake.location), output=Output(json=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["files"]["bronze_journal"] == 1
    assert ("compacted", "bronze_journal") in [(line.get("step"), line.get("table")) for line in lines]
    assert seqs(lake) == list(range(1, _ROWS + 1))


def test_compact_while_a_run_holds_the_lake_is_refused_and_one_without_a_lake_too(lake: Lake, tmp_path: Path) -> None:
    with hold_lake(lake), pytest.raises(PosthouseError) as busy:
        compact(pipeline_options=PipelineOptions(lake=lake.location))
    with pytest.raises(PosthouseError) as empty:
        compact(pipeline_options=PipelineOptions(lake=str(tmp_path / "none")))
    assert (busy.value.code, empty.value.code) == ("lake_busy", "lake_empty")
    assert not (tmp_path / "none").exists()


def test_a_run_merges_once_there_are_as_many_small_files_as_the_setting_says(lake: Lake) -> None:
    steps: list[RunStep] = []
    tidy_lake(lake, Upkeep(compact_files=11), steps.append)
    assert steps == []
    tidy_lake(lake, Upkeep(compact_files=10), steps.append)
    assert [(step.step, step.table, step.fields) for step in steps] == [("compacted", "bronze_journal", {"files": 9})]


def test_settings_say_how_long_logs_and_replaced_files_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.delta("silver_refusals")
    table.commit(Commit(), arrow_schema(table.name), ("day",))
    monkeypatch.setenv("POSTHOUSE_PIPELINE_RETENTION_DAYS", "3")
    monkeypatch.setenv("POSTHOUSE_PIPELINE_DERIVED_RETENTION_HOURS", "5")
    compact(pipeline_options=PipelineOptions(lake=lake.location), output=Output(json=True))
    assert retention(lake, "bronze_journal") == f"interval {3 * _DAY_S} seconds"
    assert retention(lake, "silver_refusals") == f"interval {5 * _HOUR_S} seconds"
