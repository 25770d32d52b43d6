"""What pipeline whatif and report refuse before Spark is started for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine

LIMITS = '{"reliability": {"rateLimit": {"maxPerWindow": 7}}}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "new.json"
    path.write_text(LIMITS)
    return path


def test_whatif_without_rules_to_simulate_is_a_usage_error(cli: CommandLine) -> None:
    outcome = cli("pipeline", "whatif", "--json")
    assert outcome.exit == Exit.USAGE
    assert "--config" in outcome.problem["hint"]


def test_whatif_names_the_fault_of_a_proposal(cli: CommandLine, config: Path) -> None:
    config.write_text('{"reliability": {"rateLimit": {"maxPerWindow": "many"}}}')
    assert cli("pipeline", "whatif", "--config", str(config), "--json").problem["code"] == "reliability_invalid"
    missing = str(config.with_name("none.json"))
    assert cli("pipeline", "whatif", "--rules", missing, "--json").problem["code"] == "usage"


@pytest.mark.parametrize("command", ["whatif", "report"])
def test_empty_lake_is_said_and_nothing_is_made(cli: CommandLine, config: Path, tmp_path: Path, command: str) -> None:
    lake = tmp_path / "lake"
    options = ["--config", str(config)] if command == "whatif" else []
    outcome = cli("pipeline", command, *options, "--lake", str(lake), "--json")
    assert outcome.problem["code"] == "lake_empty"
    assert not lake.exists()
