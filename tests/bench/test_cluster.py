from __future__ import annotations

from pathlib import Path

import pytest

from bench.cluster import REQUIRED, measure_cluster
from bench.scales import ClusterScale
from tests.postgresql.server import find_installation


@pytest.mark.slow
@pytest.mark.skipif(find_installation() is None, reason="no PostgreSQL")
def test_bench_measures_everything_that_is_required(tmp_path: Path) -> None:
    report = measure_cluster(tmp_path, ClusterScale(rounds=1, events=64, singles=2, passed=2), lambda _: None)
    assert [each["name"] for each in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert all(report[each]["ours_per_s"] > 0 for each in ("one_at_a_time", "in_flight_64", "sqlite", "three_relays"))
    assert report["between"]["p50_ms"] > 0
