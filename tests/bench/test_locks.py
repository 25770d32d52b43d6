from __future__ import annotations

from pathlib import Path

import pytest

from bench.locks import CLIENTS, REQUIRED, Round, _report, measure_locks
from bench.scales import LocksScale


@pytest.mark.slow
def test_bench_measures_everything_that_is_required(tmp_path: Path) -> None:
    report = measure_locks(tmp_path, LocksScale(rounds=1, pairs=8), lambda _: None)
    assert [each["name"] for each in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert report["synced_before_answer"] is True and report["settings"]["clients"] == CLIENTS
    assert report["bare_commits_per_s"] > 0
    assert all(report[section]["pairs_per_s"] > 0 for section in ("one_client", "distinct", "contended"))


def test_ratios_are_those_of_each_round_and_judged_by_their_bounds() -> None:
    rounds = [Round(1_000, 200, 600, 199), Round(2_000, 400, 1_200, 398), Round(10, 1, 9, 9)]
    report = _report(rounds, LocksScale())
    assert (report["one_client"]["ratio"], report["distinct"]["ratio"]) == (0.4, 3.0)
    assert report["contended"]["ratio"] == 0.995
    assert [each["met"] for each in report["required"]] == [True, True, False]
