"""The measurements of the bus run, report what they count, and are evaluated by the stated bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import bus_growth
from bench.bus import REQUIRED, evaluate, run_bus
from bench.comparison import median_ratio, percentile
from bench.scales import BUS_LIMITS, QUICK_BUS

TINY = replace(
    QUICK_BUS, messages=20, rounds=2, latency_messages=5, waiting=20, rebuild_files=20, fan_out_publishes=1,
    memory_publishes=40,
)  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_bus(tmp_path_factory.mktemp("bench"), TINY, lambda _text: None)


def test_report_has_a_value_for_every_requirement(report: dict[str, Any]) -> None:
    assert [entry["name"] for entry in report["required"]] == [requirement.name for requirement in REQUIRED]
    assert all(entry["value"] == entry["value"] for entry in report["required"])


def test_report_prints_limits_that_are_raised_and_switched_on(report: dict[str, Any]) -> None:
    assert all(section["enabled"] is True for section in report["limits"].values())
    assert BUS_LIMITS.rate_limit.enabled
    assert report["file_bytes"] > report["payload_bytes"]


def test_rates_are_positive(report: dict[str, Any]) -> None:
    assert all(value > 0 for value in report["throughput"].values())
    assert report["memory"]["publishes"] == TINY.memory_publishes
    assert report["latency"]["one_process_p50_ms"] > 0


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda requirement: requirement.name)
def test_requirement_is_met_at_its_bound_and_missed_beyond_it(requirement: Any) -> None:
    beyond = requirement.bound * (0.99 if requirement.comparison == "at least" else 1.01)
    for value, is_met in ((requirement.bound, True), (beyond, False)):
        assert requirement.evaluate({requirement.section: {requirement.key: value}})["met"] is is_met


def test_evaluation_names_the_figure_that_misses_its_bound(report: dict[str, Any]) -> None:
    slow = report | {"throughput": report["throughput"] | {"one_by_one_ratio": 0.01}}
    assert [
        entry["met"] for entry in evaluate(slow) if entry["name"] == "One publish at a time, relative to the floor"
    ] == [False]


def test_ratio_is_the_middle_of_the_rounds() -> None:
    assert median_ratio([1, 2, 30], [10, 10, 10]) == 0.2
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3


async def test_memory_is_measured_on_the_disk_when_there_is_no_room_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not bus_growth.has_room(tmp_path / "nowhere")
    monkeypatch.setattr(bus_growth, "has_room", lambda _disk: False)
    found = await bus_growth.measure_memory(tmp_path / "memory", replace(TINY, memory_publishes=20))
    assert found["publishes"] == 20
    assert (tmp_path / "memory" / "bus" / "bus.db").exists()
