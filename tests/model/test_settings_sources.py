"""The environment of a Pinch relay as settings: read, weighed against the others, refused when bad."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.settings_sources import PINCH_VARIABLES, Source, resolve_settings

GOOD = {
    "PINCH_RELAY_PORT": "9000",
    "PINCH_RELAY_PUBLIC_HOST": "relay.example",
    "PINCH_RELAY_QUEUE_MAX": "5",
    "PINCH_RELAY_QUEUE_TTL": "48",
    "PINCH_RELAY_RATE_LIMIT": "2.5",
    "PINCH_RELAY_RATE_BURST": "20",
    "PINCH_RELAY_ALLOWED_ORIGINS": "https://a.example,*.b.example",
}


def test_every_variable_sets_its_setting() -> None:
    assert set(GOOD) == set(PINCH_VARIABLES)
    values = resolve_settings(environ=GOOD)
    names = {name for name, each in values.items() if each.source is Source.ENVIRONMENT}
    found: dict[str, Any] = {name: values[name].value for name in names}
    assert found == {
        "relay.listen": "127.0.0.1:9000",
        "relay.pinch_host": "relay.example",
        "relay.queue_max": 5,
        "relay.queue_ttl_s": 48 * 3_600,
        "relay.pinch_rate": 2.5,
        "relay.pinch_burst": 20,
        "relay.pinch_origins": "https://a.example,*.b.example",
    }


def test_without_variables_pinch_is_off() -> None:
    assert resolve_settings(environ={})["relay.pinch_host"].value is None


def test_port_goes_to_where_the_relay_listens() -> None:
    file = {"relay": {"listen": "[::1]:7420"}}
    assert resolve_settings(file, GOOD)["relay.listen"].value == "[::1]:9000"


def test_names_of_this_program_go_before_those_of_pinch_and_these_before_the_file() -> None:
    file = {"relay": {"queue_max": 7, "pinch_burst": 8}}
    environ = GOOD | {"POSTHOUSE_RELAY_QUEUE_MAX": "9"}
    values = resolve_settings(file, environ, {"relay.pinch_host": "flag.example"})
    assert values["relay.queue_max"].value == 9
    assert values["relay.pinch_burst"].value == 20
    assert values["relay.pinch_host"].value == "flag.example"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PINCH_RELAY_PORT", "http"),
        ("PINCH_RELAY_PORT", "65536"),
        ("PINCH_RELAY_PORT", "-1"),
        ("PINCH_RELAY_PORT", ""),
        ("PINCH_RELAY_PUBLIC_HOST", ""),
        ("PINCH_RELAY_QUEUE_MAX", "0"),
        ("PINCH_RELAY_QUEUE_MAX", "many"),
        ("PINCH_RELAY_QUEUE_MAX", "1.5"),
        ("PINCH_RELAY_QUEUE_TTL", "0"),
        ("PINCH_RELAY_QUEUE_TTL", "-3"),
        ("PINCH_RELAY_QUEUE_TTL", "7d"),
        ("PINCH_RELAY_QUEUE_TTL", "nan"),
        ("PINCH_RELAY_QUEUE_TTL", "inf"),
        ("PINCH_RELAY_RATE_LIMIT", "0"),
        ("PINCH_RELAY_RATE_LIMIT", "fast"),
        ("PINCH_RELAY_RATE_LIMIT", "nan"),
        ("PINCH_RELAY_RATE_BURST", "0"),
        ("PINCH_RELAY_RATE_BURST", "1e3"),
        ("PINCH_RELAY_ALLOWED_ORIGINS", ""),
    ],
)
def test_bad_value_is_refused_and_the_variable_named(variable: str, text: str) -> None:
    with pytest.raises(PosthouseError) as caught:
        resolve_settings(environ=GOOD | {variable: text})
    assert caught.value.code == "setting_invalid"
    assert caught.value.fields["source"] == variable


@pytest.mark.parametrize("variable", PINCH_VARIABLES)
def test_bad_value_is_refused_even_where_a_flag_overrides_it(variable: str) -> None:
    with pytest.raises(PosthouseError):
        resolve_settings(
            environ={variable: ""}, flags={"relay.pinch_host": "flag.example", "relay.listen": "127.0.0.1:0"}
        )
