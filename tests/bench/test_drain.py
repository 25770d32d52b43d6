from __future__ import annotations

from pathlib import Path

from bench.drain import REQUIRED, measure_drain
from bench.scales import DRAIN_SETTINGS, QUICK_DRAIN


def test_report_has_the_figures_and_the_settings_of_the_run(tmp_path: Path) -> None:
    progress: list[str] = []
    report = measure_drain(tmp_path, QUICK_DRAIN, progress.append)
    assert progress
    assert (report["settings"], report["window"], report["ids_per_signature"]) == (DRAIN_SETTINGS, 500, 50)
    assert (report["synced_before_answer"], report["reader_verifies"]) == (True, False)
    assert len(report["one_reader"]["rounds"]) == QUICK_DRAIN.rounds
    assert report["crowd"]["readers"] == QUICK_DRAIN.readers
    assert [each["name"] for each in report["required"]] == [each.name for each in REQUIRED]
    assert all(each["value"] > 0 for each in report["required"])
