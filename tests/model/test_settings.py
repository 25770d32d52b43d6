from __future__ import annotations

from typing import Any

import pytest

from posthouse.model.errors import Refused
from posthouse.model.setting import Setting
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import Source, resolve_settings


def test_one_name_gives_the_environment_variable_and_the_flag() -> None:
    setting = SETTINGS["relay.queue_max"]
    assert (setting.environment, setting.flag) == ("POSTHOUSE_RELAY_QUEUE_MAX", "--queue-max")
    assert (setting.area, setting.key) == ("relay", "queue_max")


def test_every_default_is_valid_and_every_setting_is_explained() -> None:
    for setting in SETTINGS.values():
        assert setting.default is None or setting.read(setting.default) == setting.default
        assert setting.help.endswith(".")


def test_no_two_settings_share_an_environment_variable_or_a_flag_of_their_area() -> None:
    assert len({s.environment for s in SETTINGS.values()}) == len(SETTINGS)
    assert len({(s.area, s.flag) for s in SETTINGS.values()}) == len(SETTINGS)


def test_the_stronger_source_wins_and_is_told() -> None:
    name, file = "relay.queue_max", {"relay": {"queue_max": 2}}
    environ, flags = {"POSTHOUSE_RELAY_QUEUE_MAX": "3"}, {"relay.queue_max": 4}
    results = [
        resolve_settings(),
        resolve_settings(file),
        resolve_settings(file, environ),
        resolve_settings(file, environ, flags),
    ]
    assert [(r[name].value, r[name].source) for r in results] == [
        (1000, Source.DEFAULT),
        (2, Source.FILE),
        (3, Source.ENVIRONMENT),
        (4, Source.FLAG),
    ]
    assert resolve_settings(file, environ, {name: None})[name].source is Source.ENVIRONMENT


@pytest.mark.parametrize(
    ("file", "environ", "flags", "source"),
    [
        ({"relay": {"queue_max": 0}}, {}, {}, "the file"),
        ({"relay": {"queue_max": "5"}}, {}, {}, "the file"),
        ({"relay": {"queue_max": True}}, {}, {}, "the file"),
        ({"relay": {"queue_max": 5.0}}, {}, {}, "the file"),
        ({"relay.queue_max": -1}, {}, {}, "the file"),
        ({}, {"POSTHOUSE_RELAY_QUEUE_MAX": "many"}, {}, "POSTHOUSE_RELAY_QUEUE_MAX"),
        ({}, {"POSTHOUSE_RELAY_QUEUE_MAX": ""}, {}, "POSTHOUSE_RELAY_QUEUE_MAX"),
        ({}, {"POSTHOUSE_RELAY_QUEUE_MAX": "0"}, {"relay.queue_max": 5}, "POSTHOUSE_RELAY_QUEUE_MAX"),
        ({}, {}, {"relay.queue_max": "1.5"}, "--queue-max"),
        ({}, {"POSTHOUSE_BUS_DURABILITY": "hope"}, {}, "POSTHOUSE_BUS_DURABILITY"),
        ({}, {"POSTHOUSE_BUS_DIR": ""}, {}, "POSTHOUSE_BUS_DIR"),
        ({}, {"POSTHOUSE_RELAY_BEHIND_PROXY": "perhaps"}, {}, "POSTHOUSE_RELAY_BEHIND_PROXY"),
        ({}, {"POSTHOUSE_BUS_HANDLER_TIMEOUT_S": "nan"}, {}, "POSTHOUSE_BUS_HANDLER_TIMEOUT_S"),
        ({}, {"POSTHOUSE_BUS_HANDLER_TIMEOUT_S": "inf"}, {}, "POSTHOUSE_BUS_HANDLER_TIMEOUT_S"),
        ({}, {"POSTHOUSE_RELAY_RECORD_RETENTION_DAYS": "6"}, {}, "POSTHOUSE_RELAY_RECORD_RETENTION_DAYS"),
    ],
)
def test_an_invalid_value_is_refused_with_its_source(
    file: dict[str, Any], environ: dict[str, str], flags: dict[str, Any], source: str
) -> None:
    with pytest.raises(Refused) as caught:
        resolve_settings(file, environ, flags)
    assert caught.value.code == "setting_invalid"
    assert caught.value.fields["source"].startswith(source)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False), ("off", False)],
)
def test_words_for_yes_and_no(text: str, value: bool) -> None:
    assert resolve_settings(environ={"POSTHOUSE_RELAY_BEHIND_PROXY": text})["relay.behind_proxy"].value is value


def test_a_whole_number_serves_as_a_float() -> None:
    assert resolve_settings({"bus": {"handler_timeout_s": 5}})["bus.handler_timeout_s"].value == 5.0


def test_a_misspelt_key_in_the_file_is_refused_with_a_suggestion() -> None:
    with pytest.raises(Refused) as caught:
        resolve_settings({"relay": {"queue_mx": 5}})
    assert caught.value.fields["name"] == "relay.queue_mx"
    assert caught.value.hint == "Did you mean relay.queue_max?"
    with pytest.raises(Refused, match="no such setting"):
        resolve_settings({"zzz": 1})


def test_a_part_may_resolve_settings_of_its_own() -> None:
    own = {"x.y": Setting("x.y", int, 1, "A number.")}
    assert resolve_settings(environ={"POSTHOUSE_X_Y": "2"}, settings=own)["x.y"].value == 2
