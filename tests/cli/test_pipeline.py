"""Pipeline commands that fail before Spark starts: wrong input is reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine


def test_host_without_a_store_gets_a_hint_to_name_one(cli: CommandLine) -> None:
    ended = cli("pipeline", "run", "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "usage")
    assert "--source" in ended.problem["hint"]


def test_a_source_that_does_not_exist_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    ended = cli("pipeline", "run", "--source", str(tmp_path / "nothing.db"), "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "source_invalid")


def test_relay_that_does_not_answer_is_unreachable_and_no_lake_is_created(cli: CommandLine, tmp_path: Path) -> None:
    cli("keys", "new")
    ended = cli("pipeline", "run", "--source", "http://127.0.0.1:9", "--lake", str(tmp_path / "lake"), "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.UNREACHABLE, "relay_unreachable")
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("command", [("query", "SELECT 1"), ("shell",)])
def test_lake_that_does_not_exist_is_reported_as_empty(cli: CommandLine, command: tuple[str, ...]) -> None:
    ended = cli("pipeline", *command, "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.REFUSED, "lake_empty")


def test_once_and_every_exclude_each_other(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "relay.db").touch()
    ended = cli("pipeline", "run", "--source", str(tmp_path), "--once", "--every", "60s", "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "usage")
