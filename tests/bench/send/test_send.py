from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.bench.send.report import measure_send
from posthouse.bench.send.requirements import REQUIRED
from posthouse.bench.send.terms import QUICK, RELAY_SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bench-send")]


def test_quick_run_measures_everything_and_prints_its_settings(tmp_path: Path) -> None:
    report = measure_send(tmp_path, QUICK, lambda _text: None)
    assert [each["name"] for each in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert report["settings"] == RELAY_SETTINGS
    assert all(each["value"] > 0 for each in report["required"])
    assert report["synced_before_answer"] is True
    assert (report["drain"]["rows"], report["latency"]["letters"]) == (QUICK.backlog, QUICK.letters)
