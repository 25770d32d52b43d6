from __future__ import annotations

from typing import Any

import pytest

from posthouse.model.settings import SETTINGS
from tests.cli.command_line import CommandLine


def by_name(value: Any) -> dict[str, Any]:
    return {setting["name"]: setting for setting in value["settings"]}


def test_config_shows_every_setting_with_source_unit_and_help(cli: CommandLine) -> None:
    shown = by_name(cli("config", "--json").value)
    assert list(shown) == list(SETTINGS)
    for name, setting in SETTINGS.items():
        assert shown[name]["source"] == "default"
        assert shown[name]["default"] == setting.default
        assert shown[name]["help"]


def test_config_shows_people_the_same_settings(cli: CommandLine) -> None:
    outcome = cli("config")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(SETTINGS)
    assert "config.toml (does not exist)" in outcome.err


def test_config_says_where_a_value_comes_from(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.home.mkdir()
    (cli.home / "config.toml").write_text("[log]\nlevel = 'debug'\n[journal]\nkeep_days = 7\n")
    monkeypatch.setenv("POSTHOUSE_JOURNAL_KEEP_DAYS", "8")
    outcome = cli("config", "--set", "relay.queue_max=9", "--set", "relay.ping_s=1", "--json")
    shown = by_name(outcome.value)
    assert (shown["log.level"]["value"], shown["log.level"]["source"]) == ("debug", "file")
    assert (shown["journal.keep_days"]["value"], shown["journal.keep_days"]["source"]) == (8, "environment")
    assert (shown["relay.queue_max"]["value"], shown["relay.queue_max"]["source"]) == (9, "flag")
    assert shown["relay.ping_s"]["value"] == 1.0


def test_config_of_an_area_shows_only_that_area(cli: CommandLine) -> None:
    assert {name.partition(".")[0] for name in by_name(cli("config", "journal", "--json").value)} == {"journal"}


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (("nothing",), "usage"),
        (("--set", "relay.queue_max"), "usage"),
        (("--set", "relay.queue_max=many"), "setting_invalid"),
        (("--set", "relay.queue_mx=1"), "setting_invalid"),
    ],
)
def test_mistake_on_the_command_line_exits_with_usage(cli: CommandLine, tokens: tuple[str, ...], code: str) -> None:
    outcome = cli("config", *tokens, "--json")
    assert outcome.exit == 2
    assert outcome.problem["code"] == code


def test_doctor_and_config_refuse_the_same_broken_file(cli: CommandLine) -> None:
    cli.home.mkdir(mode=0o700)
    (cli.home / "config.toml").write_text("[relay]\nqueue_max = 'many'\n")
    assert cli("config").exit == 2
    outcome = cli("doctor", "--json")
    assert outcome.exit == 1
    settings = next(check for check in outcome.value["checks"] if check["name"] == "settings")
    assert settings["state"] == "fail"
    assert "relay.queue_max" in settings["text"]
