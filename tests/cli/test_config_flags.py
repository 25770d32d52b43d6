from __future__ import annotations

from typing import Any

import pytest
from cyclopts import App, CycloptsError

from posthouse.cli.config import flags_of, load_settings
from posthouse.model.settings import SETTINGS

RelayFlags = flags_of("relay")


def parse(*tokens: str) -> dict[str, Any]:
    """Return what a command with the relay's flags is given."""
    app = App()

    def command(*, flags: Any = None) -> dict[str, Any]:
        return {} if flags is None else flags.given()

    command.__annotations__["flags"] = RelayFlags | None
    app.default(command)
    given: dict[str, Any] = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    return {name: value for name, value in given.items() if value is not None}


def test_every_setting_of_the_area_is_an_option() -> None:
    assert set(RelayFlags().given()) == {name for name in SETTINGS if name.startswith("relay.")}


def test_option_arrives_under_the_name_of_its_setting_with_its_type() -> None:
    given = parse("--queue-max", "7", "--behind-proxy", "--listen", "127.0.0.1:9")
    assert given == {"relay.queue_max": 7, "relay.behind_proxy": True, "relay.listen": "127.0.0.1:9"}
    assert load_settings(given, {})["relay.queue_max"].value == 7


def test_no_option_gives_nothing() -> None:
    assert parse() == {}


def test_switch_can_be_turned_off_against_the_file() -> None:
    assert parse("--no-behind-proxy") == {"relay.behind_proxy": False}


@pytest.mark.parametrize("tokens", [("--queue-max", "many"), ("--connection-policy", "oldest"), ("--keep-days", "1")])
def test_wrong_value_choice_or_area_is_a_usage_error(tokens: tuple[str, ...]) -> None:
    with pytest.raises(CycloptsError):
        parse(*tokens)


def test_area_without_settings_is_a_mistake_of_the_programmer() -> None:
    with pytest.raises(ValueError, match="area"):
        flags_of("relais")
