"""Pipeline commands that fail before Spark starts: wrong input is reported at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from posthouse.cli import pipeline_run
from posthouse.cli.output import Output
from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.connector.source_access import parse_sources
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


@pytest.mark.parametrize(
    "command", [("query", "SELECT 1"), ("shell",), ("serve",), ("publish",), ("replay", "--to", "#again"), ("compact",)]
)
def test_lake_that_does_not_exist_is_reported_as_empty(cli: CommandLine, command: tuple[str, ...]) -> None:
    ended = cli("pipeline", *command, "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.REFUSED, "lake_empty")


def test_once_and_every_exclude_each_other(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "relay.db").touch()
    ended = cli("pipeline", "run", "--source", str(tmp_path), "--once", "--every", "60s", "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "usage")


def test_wrong_numbers_of_a_run_are_refused_before_spark_starts(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the run would end with another error, and with one it would start Spark."""
    for words in (("--compact-files", "1"), ("--retention-days", "0"), ("--derived-retention-hours", "-1")):
        ended = cli("pipeline", "run", *words, "--source", str(tmp_path / "nothing.db"), "--json")
        assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "setting_invalid")
    monkeypatch.setenv("POSTHOUSE_PIPELINE_BATCH_ROWS", "many")
    ended = cli("pipeline", "run", "--source", str(tmp_path / "nothing.db"), "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "setting_invalid")


def test_show_without_a_lake_and_with_wrong_words_is_refused(cli: CommandLine) -> None:
    assert cli("pipeline", "show", "health", "--json").problem["code"] == "lake_empty"
    for words in (
        ("show", "everything"),
        ("show", "health", "--by", "day"),
        ("show", "cost", "--by", "weekday"),
        ("show", "cost", "--since", "yesterday"),
        ("show", "cost", "--since", "2026-11-02", "--until", "2026-11-01"),
        ("report", "--since", "soon"),
        ("query", "SELECT 1", "--limit", "0"),
        ("export", "conversations.csv"),
        ("export", "nowhere/conversations.jsonl"),
        ("export", "a.jsonl", "--again", "b.json", "--rules", "c.toml"),
    ):
        assert cli("pipeline", *words, "--json").exit == Exit.USAGE


def test_every_verb_has_its_line_in_the_help(cli: CommandLine) -> None:
    shown = cli("pipeline", "--help").out
    rows = [line.strip("│ ").split(None, 1) for line in shown.splitlines()]
    described = {row[0]: row[1] for row in rows if len(row) == 2}
    for verb in ("run", "query", "show", "shell", "serve", "audit", "report", "whatif", "demo", "publish", "replay"):
        assert len(described.get(verb, "")) > 20, f"{verb}: {described.get(verb)!r}"


def test_directory_stands_for_every_store_below_it(tmp_path: Path) -> None:
    stores = [tmp_path / "relay" / "relay.db", tmp_path / "daemon" / "main" / "outbox.db"]
    stores.append(tmp_path / "standby" / "follower.db")
    for path in (
        *stores,
        tmp_path / "relay" / "follower.db",
        tmp_path / "lake" / "bronze_journal" / "_delta_log" / "bus.db",
        tmp_path / "notes.db",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = parse_sources([str(tmp_path)])
    assert {address.url for address in found} == {str(path) for path in stores}
    (tmp_path / "empty").mkdir()
    with pytest.raises(PosthouseError) as refused:
        parse_sources([str(tmp_path / "empty")])
    assert refused.value.code == "source_invalid" and "below" in str(refused.value)


def test_repeated_run_goes_on_after_a_failure_that_may_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third run ends the command, as a service manager does; only the runs themselves are replaced."""
    runs: list[int] = []

    def run_once(*_given: object, **_options: object) -> None:
        runs.append(len(runs))
        if len(runs) == 2:
            raise error("source_behind", url="follower.db", reason="it ends at record 3")
        if len(runs) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pipeline_run, "run_once", run_once)
    monkeypatch.setattr(pipeline_run, "open_sources", lambda _options: [])
    monkeypatch.setattr(pipeline_run, "parse_duration", lambda _text: 0.01)
    monkeypatch.setattr(PipelineOptions, "session", lambda _self: SimpleNamespace(stop=lambda: None))
    pipeline_run.run(every="1s", output=Output(json=True))
    assert len(runs) >= 3
    assert '"code":"source_behind"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("export", "to.jsonl", "--rules"), ("export", "to.jsonl", "--again"), ("whatif", "--config")]
)
def test_a_file_that_is_not_there_is_a_wrong_argument_and_not_a_damaged_setting(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    ended = cli("pipeline", *words, "absent", "--json")
    assert (ended.exit, ended.problem["code"]) == (Exit.USAGE, "usage")
    assert "absent cannot be read: No such file or directory" in str(ended.problem)
