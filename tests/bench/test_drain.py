from __future__ import annotations

from pathlib import Path

from posthouse.bench.drain.report import measure_drain
from posthouse.bench.drain.requirements import REQUIRED
from posthouse.bench.drain.terms import QUICK, SETTINGS


def test_report_says_what_was_measured_and_under_which_terms(tmp_path: Path) -> None:
    told: list[str] = []
    report = measure_drain(tmp_path, QUICK, told.append)
    assert told
    assert (report["settings"], report["window"], report["ids_per_signature"]) == (SETTINGS, 500, 50)
    assert (report["synced_before_answer"], report["reader_verifies"]) == (True, False)
    assert len(report["one_reader"]["rounds"]) == QUICK.rounds
    assert report["crowd"]["readers"] == QUICK.readers
    assert [each["name"] for each in report["required"]] == [each.name for each in REQUIRED]
    assert all(each["value"] > 0 for each in report["required"])
