"""The whole audit over a real lake and real stores: clean ones pass, altered files and stores do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from posthouse.cli.output import Output
from posthouse.cli.pipeline import audit as audit_command
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.model.clock import FakeClock
from posthouse.pipeline.audit.audit import Sources, audit
from posthouse.pipeline.audit.seals import audit_lake
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier, ignore_step
from posthouse.sqlite.connection import Durability, open_writer
from tests.pipeline.audit.forging import rewrite

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def filled(spark: SparkSession, stores: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that holds the stores, in batches of one block."""
    lake = Lake(tmp_path_factory.mktemp("lake") / "lake")
    for path in stores:
        Copier(spark, lake, Access(str(path)), FakeClock(), 4_096, ignore_step).copy()
    return lake


@pytest.fixture
def lake(filled: Lake, tmp_path: Path) -> Lake:
    """A copy that a test may ruin."""
    shutil.copytree(filled.path, tmp_path / "lake")
    return Lake(tmp_path / "lake")


def test_a_clean_lake_and_its_stores_have_no_findings(spark: SparkSession, filled: Lake, stores: list[Path]) -> None:
    report = audit(spark, filled, [Access(str(path)) for path in stores])
    assert report.findings == []
    assert report.records > 500


def test_an_altered_record_in_a_lake_file_is_found(spark: SparkSession, lake: Lake) -> None:
    rewrite(lake, "bronze_journal", lambda row: row.update(at_ns=int(str(row["at_ns"])) + 1))
    assert {finding.code for finding in audit_lake(spark, lake)[0]} == {"lake_altered"}


def test_an_altered_event_in_a_lake_file_is_found(spark: SparkSession, lake: Lake) -> None:
    rewrite(
        lake, "bronze_events", lambda row: row.update(event=str(row["event"]).replace('"content":"', '"content":"x'))
    )
    assert {finding.code for finding in audit_lake(spark, lake)[0]} == {"lake_altered"}


def test_a_missing_lake_file_is_a_finding(spark: SparkSession, lake: Lake) -> None:
    (lake.path / "bronze_journal" / lake.delta("bronze_journal").files()[0].path).unlink()
    assert set(audit(spark, lake).counts) == {"lake_altered"}


def test_a_store_that_was_edited_after_the_run_is_found(
    spark: SparkSession, filled: Lake, stores: list[Path], tmp_path: Path
) -> None:
    edited = tmp_path / "relay.db"
    shutil.copy(stores[0], edited)
    db = open_writer(edited, Durability.FULL)
    db.execute("UPDATE journal SET at_ns = at_ns + 1 WHERE seq = 7")
    db.close()
    found = list(Sources(spark, [Access(str(edited))]).compare(filled))
    assert {(finding.code, finding.store) for finding in found} == {("store_altered", "relay")}


def test_the_command_tells_every_finding_and_fails(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)  # all tests share the session
    rewrite(lake, "bronze_journal", lambda row: row.update(ref="somebody else"))
    assert audit_command(pipeline_options=PipelineOptions(lake=lake.location), output=Output(json=True)) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert lines[-1]["findings"] == len(lines) - 1 > 0
    assert {"code", "store", "epoch", "ref", "seq", "detail"} == set(lines[0])
