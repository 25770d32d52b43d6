from __future__ import annotations

from pathlib import Path

import pytest

from bench.relay import REQUIRED, evaluate, measure_relay
from bench.scales import IN_FLIGHT, RELAY_SETTINGS, RelayScale

TINY = RelayScale(rounds=1, events=2 * IN_FLIGHT, singles=3, fan_out_events=IN_FLIGHT, stored=1_000, queries=2)


@pytest.mark.slow
def test_bench_measures_everything_that_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    progress: list[str] = []
    report = measure_relay(tmp_path, TINY, progress.append)
    assert [each["name"] for each in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert report["settings"] == RELAY_SETTINGS
    assert report["synced_before_answer"] is True
    assert len(report["query"]["shapes"]) >= 5
    assert progress


def test_requirement_below_its_bound_is_not_met() -> None:
    report = {
        "in_flight_64": {"ratio": 0.1},
        "one_at_a_time": {"ratio": 0.35},
        "fan_out": {"deliveries_per_s": 99_999},
        "query": {"p50_ms": 9.9},
        "large_store": {"ratio": 0.79},
    }
    assert [each["met"] for each in evaluate(report)] == [False, True, False, True, False]
