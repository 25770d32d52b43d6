"""What a run tells monitoring: metrics for Prometheus, events for OpenLineage, of failed runs too."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse.cli.output import Output
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.cli.pipeline_run import MonitoringOptions, _monitored
from posthouse.model.clock import FakeClock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.openlineage import LineageRun, LineageServer
from posthouse.pipeline.run.run_metrics import METRICS, RunFigures, write_run_metrics

STEPS = [
    RunStep("copied", "bronze_journal", 40, {"oldest_at_ns": 90 * SECOND_NS}),
    RunStep("copied", "bronze_journal", 2, {"oldest_at_ns": 95 * SECOND_NS}),
    RunStep("unchanged", "silver_inbox", 0, {}),
    RunStep("derived", "silver_messages", 7, {}),
]


def test_the_metrics_file_of_a_run_has_every_metric_and_can_be_read_by_the_exporter(tmp_path: Path) -> None:
    figures = RunFigures(98 * SECOND_NS, 100 * SECOND_NS, True, STEPS, {"bronze_journal": (3, 4_000)})
    write_run_metrics(tmp_path / "run.prom", figures)
    families = {each.name: each for each in text_string_to_metric_families((tmp_path / "run.prom").read_text())}
    assert set(families) == {metric.name for metric in METRICS}
    found = {
        (sample.name.removeprefix("posthouse_pipeline_"), *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert found == {
        ("run_successful",): 1,
        ("run_end_timestamp_seconds",): 100,
        ("run_seconds",): 2,
        ("run_rows", "bronze_journal"): 42,
        ("run_rows", "silver_messages"): 7,
        ("lag_seconds",): 10,
        ("table_files", "bronze_journal"): 3,
        ("table_bytes", "bronze_journal"): 4_000,
    }
    assert stat.S_IMODE((tmp_path / "run.prom").stat().st_mode) == 0o644


@contextmanager
def lineage_server(status: int = 201) -> Iterator[tuple[str, list[tuple[str | None, dict[str, Any]]]]]:
    received: list[tuple[str | None, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/v1/lineage":
                received.append((self.headers["Authorization"], json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_run_sends_its_start_and_its_end_with_sources_and_tables() -> None:
    run = LineageRun(FakeClock(), ["https://relay.example.org:443", "/data/bus.db"], "s3://bucket/lake")
    with lineage_server() as (url, received):
        server = LineageServer(url, "key")
        assert server.post(run.started()) is None
        assert server.post(run.completed({"bronze_journal": 42})) is None
    (key, start), (_, end) = received
    assert (key, start["eventType"], end["eventType"]) == ("Bearer key", "START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert end["inputs"] == [
        {"namespace": "https://relay.example.org:443", "name": "journal"},
        {"namespace": "file", "name": "/data/bus.db"},
    ]
    (output,) = end["outputs"]
    assert (output["namespace"], output["name"]) == ("s3://bucket", "lake/bronze_journal")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 42


@pytest.mark.parametrize("is_failing", [False, True])
def test_runs_are_reported_where_the_settings_say_also_if_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_failing: bool
) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POSTHOUSE_PIPELINE_METRICS_FILE", str(tmp_path / "run.prom"))
    (tmp_path / "bus.db").touch()
    options = PipelineOptions(source=(str(tmp_path / "bus.db"),))
    with lineage_server(503 if is_failing else 201) as (url, received):
        monkeypatch.setenv("OPENLINEAGE_URL", url)

        def run() -> None:
            with _monitored(Lake(tmp_path / "lake"), options, MonitoringOptions(), Output()) as figures:
                figures.steps += STEPS
                if is_failing:
                    raise error("lake_busy", path="lake")

        if is_failing:
            with pytest.raises(Exception, match="another run"):
                run()
        else:
            run()
    assert [event["eventType"] for _key, event in received] == ["START", "FAIL" if is_failing else "COMPLETE"]
    last = received[-1][1]
    assert ("errorMessage" in last["run"]["facets"]) is is_failing
    assert ("did not accept the event START" in capsys.readouterr().err) is is_failing
    assert f"posthouse_pipeline_run_successful {float(not is_failing)}" in (tmp_path / "run.prom").read_text()


def test_lineage_names_each_store_by_its_whole_path_and_a_relay_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here/bus/bus.db", "here/relay/relay.db"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    options = PipelineOptions(source=("here", "https://ann:secret@relay.example.org"))
    with (
        lineage_server() as (url, received),
        _monitored(Lake(tmp_path / "lake"), options, MonitoringOptions(openlineage_url=url), Output()),
    ):
        pass
    assert [event["inputs"] for _key, event in received] == [
        [
            {"namespace": "file", "name": str(tmp_path / "here/bus/bus.db")},
            {"namespace": "file", "name": str(tmp_path / "here/relay/relay.db")},
            {"namespace": "https://relay.example.org:443", "name": "journal"},
        ]
    ] * 2


def test_metrics_and_lineage_that_cannot_be_written_never_fail_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bus.db").touch()
    options = PipelineOptions(source=(str(tmp_path / "bus.db"),))
    monitoring = MonitoringOptions(str(tmp_path / "nowhere" / "run.prom"), "not a url")
    with _monitored(Lake(tmp_path / "lake"), options, monitoring, Output()):
        pass
    told = capsys.readouterr().err
    assert "metrics of the run could not be written" in told and "lineage server not a url" in told
