from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.cli.config import load_hooks, load_settings, read_settings_file
from posthouse.model.errors import Refused
from posthouse.model.settings_sources import Source


def environment(home: Path, **extra: str) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {"POSTHOUSE_HOME": str(home), **extra}


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    name = "journal.keep_days"
    assert (load_settings(environ=environ)[name].value, load_settings(environ=environ)[name].source) == (
        30,
        Source.DEFAULT,
    )
    (tmp_path / "config.toml").write_text("[journal]\nkeep_days = 7\n")
    assert (load_settings(environ=environ)[name].value, load_settings(environ=environ)[name].source) == (7, Source.FILE)
    environ["POSTHOUSE_JOURNAL_KEEP_DAYS"] = "8"
    assert (load_settings(environ=environ)[name].value, load_settings(environ=environ)[name].source) == (
        8,
        Source.ENVIRONMENT,
    )
    flagged = load_settings({name: 9}, environ)[name]
    assert (flagged.value, flagged.source) == (9, Source.FLAG)


def test_default_places_follow_the_home_and_given_ones_do_not(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    assert load_settings(environ=environ)["bus.dir"].value == str(tmp_path / "bus")
    environ["POSTHOUSE_BUS_DIR"] = "~/.posthouse/bus"
    assert load_settings(environ=environ)["bus.dir"].value == "~/.posthouse/bus"


def test_unknown_setting_in_the_file_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    (tmp_path / "config.toml").write_text("[journal]\nkeep_day = 7\n")
    with pytest.raises(Refused) as refused:
        load_settings(environ=environ)
    assert refused.value.code == "setting_invalid"
    assert refused.value.hint == "Did you mean journal.keep_days?"


@pytest.mark.parametrize("text", ["[journal\n", "a = 'unfinished", "\udcff"])
def test_file_that_is_not_toml_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Refused) as refused:
        read_settings_file(path)
    assert refused.value.code == "config_unreadable"
    assert refused.value.fields["path"] == str(path)


def test_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(Refused, match="cannot be read"):
        read_settings_file(tmp_path / "config.toml")


def test_no_file_sets_nothing(tmp_path: Path) -> None:
    assert read_settings_file(tmp_path / "config.toml") == {}


def test_hooks_of_the_file_are_checked_with_the_settings(tmp_path: Path) -> None:
    environ, config = environment(tmp_path), tmp_path / "config.toml"
    config.write_text('[[hook]]\nname = "h"\nevent = "received"\ncommand = "true"\nmatch = { agent = "claude" }\n')
    assert load_settings(environ=environ)["relay.queue_max"].source is Source.DEFAULT
    assert [hook.name for hook in load_hooks(environ)] == ["h"]
    config.write_text('[[hook]]\nname = "h"\nevent = "eaten"\ncommand = "true"\n')
    with pytest.raises(Refused, match="eaten"):
        load_settings(environ=environ)
