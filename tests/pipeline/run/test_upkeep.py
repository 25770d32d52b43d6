"""What keeps a lake small: `pipeline compact`, and the settings of compaction and retention."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions

from posthouse.cli.output import Output
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.cli.pipeline_run import UpkeepOptions, compact
from posthouse.files import private_dir
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import describe_file
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
    tidy_lake(lake, FakeClock(), Upkeep(compact_files=11), steps.append)
    assert steps == []
    tidy_lake(lake, FakeClock(), Upkeep(compact_files=10), steps.append)
    assert [(step.step, step.table, step.fields) for step in steps] == [("compacted", "bronze_journal", {"files": 9})]


@pytest.mark.parametrize("way", ["file", "environment", "flag"])
def test_upkeep_is_set_by_file_environment_and_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(private_dir(tmp_path / "home")))
    wanted = {"retention_days": 3, "derived_retention_hours": 5, "compact_files": 7}
    if way == "file":
        lines = "".join(f"{name} = {value}\n" for name, value in wanted.items())
        (tmp_path / "home" / "config.toml").write_text(f"[pipeline]\n{lines}")
    for name, value in wanted.items() if way == "environment" else ():
        monkeypatch.setenv(f"POSTHOUSE_PIPELINE_{name.upper()}", str(value))
    options = UpkeepOptions(**wanted) if way == "flag" else UpkeepOptions()
    assert options.upkeep() == Upkeep(3, 5, 7)


def test_settings_say_how_long_logs_and_replaced_files_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.delta("silver_refusals")
    table.commit(Commit(), arrow_schema(table.name))
    monkeypatch.setenv("POSTHOUSE_PIPELINE_RETENTION_DAYS", "3")
    monkeypatch.setenv("POSTHOUSE_PIPELINE_DERIVED_RETENTION_HOURS", "5")
    compact(pipeline_options=PipelineOptions(lake=lake.location), output=Output(json=True))
    assert retention(lake, "bronze_journal") == f"interval {3 * _DAY_S} seconds"
    assert retention(lake, "silver_refusals") == f"interval {5 * _HOUR_S} seconds"


def test_a_bronze_table_with_a_directory_for_each_day_is_read_and_then_written_anew(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    before = BronzeScan(lake, "bronze_journal").rows(RowFilter(), arrow_schema("bronze_journal").names)
    split_by_day(lake, "bronze_journal")
    (epoch,) = lake.epochs()
    old, day = lake.delta("bronze_journal"), before[0]["day"]
    version = old.version()
    assert old.has_partitions() and not old.is_current()
    assert seqs(lake) == list(range(1, _ROWS + 1))
    assert BronzeScan(lake, "bronze_journal").paths(RowFilter(first_day=day, last_day=day)) != []
    assert BronzeScan(lake, "bronze_journal").paths(RowFilter(last_day="2000-01-01")) == []
    compact(pipeline_options=PipelineOptions(lake=lake.location), output=Output(json=True))
    new = lake.delta("bronze_journal")
    assert not new.has_partitions() and new.is_current() and new.version() > version
    assert new.app_version(f"{epoch.epoch}/journal") == _ROWS
    assert BronzeScan(lake, "bronze_journal").rows(RowFilter(), arrow_schema("bronze_journal").names) == before
    assert "migrated" in capsys.readouterr().out


def split_by_day(lake: Lake, table: str) -> None:
    """Write a table as an older posthouse has it: the day of a file is in its path, and not in the file."""
    delta = lake.delta(table)
    files, schema = delta.files(), arrow_schema(table)
    (application,) = {f"{epoch.epoch}/journal" for epoch in lake.epochs()}
    transaction = Transaction(application, delta.app_version(application) or 0)
    actions = []
    for file in files:
        assert file.days is not None
        rows, path = pq.read_table(delta.path / file.path).drop_columns(["day"]), f"day={file.days[0]}/{file.path}"
        delta.storage.prepare(path)
        pq.write_table(rows, delta.path / path)
        described = describe_file(delta.storage, path)
        actions.append(AddAction(path, described.size_bytes, {"day": file.days[0]}, 0, True, described.stats()))
        (delta.path / file.path).unlink()
    shutil.rmtree(delta.path / "_delta_log")
    private_dir(delta.path / "_delta_log")
    create_table_with_add_actions(
        delta.storage.uri,
        Schema.from_arrow(schema),
        actions,
        partition_by=["day"],
        description="posthouse.schema_version=2",
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )
