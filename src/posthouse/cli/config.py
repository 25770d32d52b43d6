"""`posthouse config`: every setting, its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.home import find_home
from posthouse.cli.settings import load
from posthouse.model.errors import error
from posthouse.model.settings import Resolved

Pairs = Annotated[
    tuple[str, ...],
    Parameter(name="--set", negative=(), show_default=False, help="Show what NAME=VALUE as a flag would do."),
]


def config(
    name: Annotated[str, Parameter(show_default=False, help="A setting, or the beginning of some.")] = "",
    /,
    *,
    set_: Pairs = (),
    output: Output = PLAIN,
) -> None:
    """Show every setting: its value, its source (default, file, environment or flag), its unit and meaning.

    The file is config.toml in the home of posthouse; a mistake in any source is an error.

    For example:

        posthouse config
        posthouse config journal
        posthouse config relay.queue_max --set relay.queue_max=500 --json
    """
    values = load(dict(_split(pair) for pair in set_))
    shown = [value for value in values.values() if value.setting.name.startswith(name)]
    if not shown:
        raise error("usage", text=f"no setting is called {name!r}", hint="Run `posthouse config` to see all.")
    path = find_home().config
    described = {"file": path, "settings": [_describe(value) for value in shown]}
    output.answer(described, table(("setting", "value", "unit", "source", "meaning"), _rows(shown)))
    output.note(f"settings file: {path}{'' if path.exists() else ' (not there)'}")


def _split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise error("usage", text=f"{pair!r} is not NAME=VALUE")
    return name, value


def _rows(shown: Sequence[Resolved]) -> list[tuple[str, str, str, str, str]]:
    return [(v.setting.name, _text(v.value), v.setting.unit, v.source, v.setting.help) for v in shown]


def _text(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe(value: Resolved) -> dict[str, Any]:
    setting = value.setting
    return {
        "name": setting.name,
        "value": value.value,
        "source": value.source,
        "default": setting.default,
        "unit": setting.unit,
        "help": setting.help,
        "environment": setting.environment,
        "flag": setting.flag,
    }
