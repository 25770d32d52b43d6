from __future__ import annotations

from pathlib import Path

from tests.cli.command_line import CommandLine

SMALL = ("--rounds", "1", "--singles", "3", "--batches", "1")


def test_store_reports_ratios_rates_settings_and_versions(bench: CommandLine, tmp_path: Path) -> None:
    outcome = bench("store", "--dir", str(tmp_path), *SMALL, "--json")
    assert outcome.exit == 0
    report = outcome.value
    for name, required, aim in (("single", 0.6, 0.8), ("in_flight_64", 0.45, 0.6)):
        result = report["results"][name]
        assert (result["required"], result["aim"]) == (required, aim)
        assert result["ratio"] > 0
        assert result["ours_per_s"] > 0
        assert result["bare_per_s"] > 0
    assert report["settings"]["rounds"] == 1
    assert {"posthouse", "python", "apsw", "sqlite"} <= report["versions"].keys()


def test_store_shows_people_a_table_and_leaves_nothing_behind(bench: CommandLine, tmp_path: Path) -> None:
    outcome = bench("store", "--dir", str(tmp_path), *SMALL)
    assert outcome.exit == 0
    assert "in_flight_64" in outcome.out
    assert "bare apsw" in outcome.out
    assert not list(tmp_path.glob("posthouse-bench-*"))


def test_store_refuses_to_measure_nothing(bench: CommandLine, tmp_path: Path) -> None:
    assert bench("store", "--dir", str(tmp_path), "--rounds", "0").exit == 2
