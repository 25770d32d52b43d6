from __future__ import annotations

from pathlib import Path

import pytest

from bench.scales import QUICK_SEND, SEND_SETTINGS
from bench.send import REQUIRED, measure_send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bench-send")]


def test_quick_run_measures_everything_and_prints_its_settings(tmp_path: Path) -> None:
    report = measure_send(tmp_path, QUICK_SEND, lambda _text: None)
    assert [each["name"] for each in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert report["settings"] == SEND_SETTINGS
    assert all(each["value"] > 0 for each in report["required"])
    assert report["synced_before_answer"] is True
    assert (report["drain"]["rows"], report["latency"]["letters"]) == (QUICK_SEND.backlog, QUICK_SEND.messages)
