"""Settings of the bus: each one, set by file or environment, changes what a Bus does that gives no argument for it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus
from posthouse.bus import TooManyListenersWarning
from posthouse.bus.options import bus_options, journal_retention
from posthouse.model.clock import FakeClock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.reliability import Reliability
from posthouse.model.settings import SETTINGS
from tests.bus.house import House
from tests.bus.limits import reasons, settled
from tests.bus.listening import Recorder
from tests.cli.command_line import CommandLine

#: the arguments of Bus that are settings, as given to none of them
NO_ARGUMENTS = dict.fromkeys(name.removeprefix("bus.") for name in SETTINGS if name.startswith("bus.")) | {"dir": None}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory of posthouse."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("POSTHOUSE_HOME", str(path))
    for name in SETTINGS:
        monkeypatch.delenv(SETTINGS[name].environment, raising=False)
    return path


@pytest.fixture(params=["file", "environment"])
def set_bus(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Set one bus setting for every Bus that the test opens after it."""

    def set_(key: str, value: Any) -> None:
        if request.param == "environment":
            monkeypatch.setenv(f"POSTHOUSE_BUS_{key.upper()}", str(value))
        else:
            text = f"'{value}'" if isinstance(value, str) else value
            (home / "config.toml").write_text(f"[bus]\n{key} = {text}\n")

    return set_


Set = Callable[[str, Any], None]


async def published(bus: Bus) -> Envelope:
    """Publish a message and return it as the mailbox has it."""
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    return (await bus.read_inbox("a.b"))[0]


async def test_dir_is_the_data_directory(tmp_path: Path, set_bus: Set) -> None:
    set_bus("dir", str(tmp_path / "elsewhere"))
    assert Bus().path == tmp_path / "elsewhere"


async def test_durability_power_syncs_every_message(
    house: House, set_bus: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_bus("durability", "power")
    synced: list[str] = []
    real = os.fsync

    def noting(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr(os, "fsync", noting)
    message = await published(await house.bus())
    assert message.id in synced


async def test_cycle_rule_chain_lets_a_line_reach_each_endpoint_once(house: House, set_bus: Set) -> None:
    async def ask_twice(bus: Bus) -> list[str]:
        """Return why the second question of a line is refused."""
        message = await published(bus)
        again = await bus.publish("a.b", "again", from_="a.b", in_reply_to=message.id)
        await bus.unregister_endpoint("a.b", force=True)
        return reasons(again)

    bus = await house.bus()
    assert await ask_twice(bus) == []
    await bus.close()
    set_bus("cycle_rule", "chain")
    assert await ask_twice(await house.bus()) == ["budget_exceeded"]


async def test_max_hops_bounds_the_budget(house: House, set_bus: Set) -> None:
    set_bus("max_hops", 2)
    assert (await published(await house.bus())).budget.max_hops == 2


async def test_default_ttl_ms_sets_when_a_message_expires(house: House, set_bus: Set) -> None:
    set_bus("default_ttl_ms", 5_000)
    bus = await house.bus()
    await published(bus)
    house.clock.advance(6)
    assert await bus.read_inbox("a.b") == []


async def test_default_call_budget_bounds_the_publishes_of_a_line(house: House, set_bus: Set) -> None:
    set_bus("default_call_budget", 7)
    assert (await published(await house.bus())).budget.call_budget_remaining == 6


async def test_handler_timeout_s_ends_a_handler(house: House, set_bus: Set) -> None:
    set_bus("handler_timeout_s", 0.05)
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(holds=True))
    await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    assert [letter.reason for letter in await bus.dead_letters("a.b")] == ["handler exceeded 0.05 s"]


async def test_max_payload_bytes_bounds_a_payload(house: House, set_bus: Set) -> None:
    set_bus("max_payload_bytes", 10)
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    assert (await bus.publish("a.b", "12345678", from_="c")).delivered_to == 1
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", "123456789", from_="c")
    assert refused.value.code == "payload_too_large"


async def test_max_listeners_sets_when_the_bus_warns(house: House, set_bus: Set) -> None:
    set_bus("max_listeners", 2)
    bus = await house.bus()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            await bus.on_signal("a.b", lambda _subject, _signal: None)
    with pytest.warns(TooManyListenersWarning, match="3 signal handlers"):
        await bus.on_signal("a.b", lambda _subject, _signal: None)


def test_argument_wins_over_environment_and_environment_over_file(home: Path) -> None:
    (home / "config.toml").write_text("[bus]\nmax_hops = 3\nmax_listeners = 30\nhandler_timeout_s = 3\n")
    environ = {
        "POSTHOUSE_HOME": str(home),
        "POSTHOUSE_BUS_MAX_HOPS": "4",
        "POSTHOUSE_BUS_MAX_LISTENERS": "40",
    }
    arguments = NO_ARGUMENTS | {"max_hops": 5}
    options = bus_options(None, arguments, Reliability(), None, FakeClock(), environ)
    assert (options.ceiling.max_hops, options.max_listeners, options.handler_timeout_s) == (5, 40, 3)
    assert options.path == home / "bus"


def test_bus_without_settings_has_the_defaults_of_the_registry(home: Path) -> None:
    options = bus_options(None, NO_ARGUMENTS, Reliability(), None, FakeClock(), {"POSTHOUSE_HOME": str(home)})
    default = {name: setting.default for name, setting in SETTINGS.items()}
    assert options.ceiling.max_hops == default["bus.max_hops"]
    assert options.ceiling.ttl_ms == default["bus.default_ttl_ms"]
    assert options.ceiling.call_budget == default["bus.default_call_budget"]
    assert options.cycle_rule == default["bus.cycle_rule"]
    assert options.is_power_safe == (default["bus.durability"] == "power")
    assert options.handler_timeout_s == default["bus.handler_timeout_s"]
    assert options.max_listeners == default["bus.max_listeners"]


def test_invalid_setting_is_refused_and_settings_of_others_are_not_read(home: Path) -> None:
    (home / "config.toml").write_text("[bus]\nmax_hops = 'many'\n")
    with pytest.raises(Refused) as refused:
        Bus()
    assert refused.value.code == "setting_invalid"
    (home / "config.toml").write_text("[relay]\nqueue_max = 'many'\n")
    assert Bus().path == home / "bus"


def test_argument_wins_over_invalid_settings(home: Path) -> None:
    (home / "config.toml").write_text("[bus]\nmax_hops = 'many'\nmax_listeners = 30\n")
    environ = {"POSTHOUSE_HOME": str(home), "POSTHOUSE_BUS_HANDLER_TIMEOUT_S": "long"}
    arguments = NO_ARGUMENTS | {"max_hops": 5, "handler_timeout_s": 2}
    options = bus_options("bus", arguments, Reliability(), None, FakeClock(), environ)
    assert (options.ceiling.max_hops, options.handler_timeout_s, options.max_listeners) == (5, 2, 30)


def test_file_is_not_read_if_path_and_every_argument_are_given(home: Path) -> None:
    (home / "config.toml").write_text("[bus\n")
    defaults = {name.removeprefix("bus."): SETTINGS[name].default for name in SETTINGS if name.startswith("bus.")}
    environ = {"POSTHOUSE_HOME": str(home)}
    options = bus_options("bus", defaults, Reliability(), None, FakeClock(), environ)
    assert options.max_listeners == SETTINGS["bus.max_listeners"].default
    with pytest.raises(PosthouseError) as refused:
        bus_options("bus", NO_ARGUMENTS, Reliability(), None, FakeClock(), environ)
    assert refused.value.code == "config_unreadable"


def test_empty_variable_means_not_set(home: Path) -> None:
    (home / "config.toml").write_text("[bus]\nmax_hops = 3\n")
    environ = {"POSTHOUSE_HOME": str(home), "POSTHOUSE_BUS_MAX_HOPS": "", "POSTHOUSE_JOURNAL_KEEP_DAYS": ""}
    options = bus_options(None, NO_ARGUMENTS, Reliability(), None, FakeClock(), environ)
    assert options.ceiling.max_hops == 3
    assert journal_retention(environ).keep_days == SETTINGS["journal.keep_days"].default


def test_user_without_a_home_directory_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    options = bus_options("bus", NO_ARGUMENTS, Reliability(), None, FakeClock(), {})
    assert options.ceiling.max_hops == SETTINGS["bus.max_hops"].default


@pytest.mark.parametrize(
    ("flag", "value", "field", "expected"),
    [("--max-hops", "3", "maxHops", 3), ("--default-call-budget", "9", "callBudgetRemaining", 8)],
)
def test_flag_of_a_command_wins_over_the_environment(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    value: str,
    field: str,
    expected: int,
) -> None:
    cli, place = CommandLine(home, capsys), ("--dir", str(tmp_path / "bus"))
    monkeypatch.setenv("POSTHOUSE_BUS_MAX_HOPS", "4")
    monkeypatch.setenv("POSTHOUSE_BUS_DEFAULT_CALL_BUDGET", "5")
    assert cli("bus", "endpoints", "add", "a.b", *place).exit == 0
    assert cli("bus", "pub", "a.b", "1", flag, value, *place).exit == 0
    messages = cli("bus", "inbox", "a.b", "--json", *place)
    assert f'"{field}":{expected}' in messages.out.replace(" ", "")


def test_flag_out_of_bounds_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = CommandLine(home, capsys)("bus", "pub", "a.b", "1", "--max-hops", "0", "--dir", str(tmp_path / "bus"))
    assert outcome.exit != 0
    assert "--max-hops" in outcome.err
