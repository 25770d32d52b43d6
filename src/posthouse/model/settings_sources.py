"""The sources of a setting's value, the first of which counts: flag, environment, file, default.

Each value carries its source. An invalid value is refused in every source, even if a stronger source overrides it, so
a mistake shows when it is made. The environment of a Pinch relay (PINCH_RELAY_PORT and others) is read too: weaker
than posthouse's own variables and flags, stronger than the file. The caller reads files and the environment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from posthouse.model.errors import error
from posthouse.model.setting import Setting, Value
from posthouse.model.settings import SETTINGS

_HOUR_S = 3_600
_PORT_MAX = 65_535


class PinchVariable(NamedTuple):
    """A value from the environment of a Pinch relay."""

    setting: str
    variable: str
    value: Any


class PinchVariableInvalid(ValueError):
    """A value that cannot be read; `source` names the variable."""

    def __init__(self, source: PinchVariable, reason: str) -> None:
        super().__init__(reason)
        self.source = source


def read_pinch_environment(environ: Mapping[str, str], listen: str) -> list[PinchVariable]:
    """Return the settings that the variables give, or raise PinchVariableInvalid.

    The port replaces that of the address `listen`.
    """
    found: list[PinchVariable] = []
    for variable, (setting, read) in PINCH_VARIABLES.items():
        text = environ.get(variable)
        if text is None:
            continue
        try:
            found.append(PinchVariable(setting, variable, read(text.strip(), listen)))
        except ValueError as fault:
            raise PinchVariableInvalid(PinchVariable(setting, variable, text), str(fault)) from fault
    return found


def _port(text: str, listen: str) -> str:
    port = _integer(text, listen)
    if not 0 <= port <= _PORT_MAX:
        raise ValueError(f"{text!r} is not a port")
    return f"{listen.rpartition(':')[0]}:{port}"


def _text(text: str, _listen: str) -> str:
    return text


def _integer(text: str, _listen: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _number(text: str, _listen: str) -> float:
    try:
        return float(text)
    except ValueError as fault:
        raise ValueError(f"{text!r} is not a number") from fault


def _hours(text: str, listen: str) -> int:
    seconds = _number(text, listen) * _HOUR_S
    if not 1 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is not a number of hours above zero")
    return round(seconds)


PINCH_VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "PINCH_RELAY_PORT": ("relay.listen", _port),
    "PINCH_RELAY_PUBLIC_HOST": ("relay.pinch_host", _text),
    "PINCH_RELAY_QUEUE_MAX": ("relay.queue_max", _integer),
    "PINCH_RELAY_QUEUE_TTL": ("relay.queue_ttl_s", _hours),
    "PINCH_RELAY_RATE_LIMIT": ("relay.pinch_rate", _number),
    "PINCH_RELAY_RATE_BURST": ("relay.pinch_burst", _integer),
    "PINCH_RELAY_ALLOWED_ORIGINS": ("relay.pinch_origins", _text),
}


class Source(enum.StrEnum):
    """The source of a value, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value and its source."""

    setting: Setting
    value: Value
    source: Source


def resolve_settings(
    file: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    settings: Mapping[str, Setting] = SETTINGS,
) -> dict[str, Resolved]:
    """Return every setting with its value and source, or raise setting_invalid.

    `file` is the parsed configuration: one table per area, or dotted names. `flags` maps names of settings to values;
    None means that the flag was not given.
    """
    values = {name: Resolved(setting, setting.default, Source.DEFAULT) for name, setting in settings.items()}
    for name, given in flatten_settings(file or {}).items():
        values[name] = _resolve(_find(settings, name), given, Source.FILE, f"the file ({name})")
    if "relay.listen" in values:
        values |= _resolve_pinch(environ or {}, settings, str(values["relay.listen"].value))
    for name, setting in settings.items():
        if (text := (environ or {}).get(setting.environment)) is not None:
            values[name] = _resolve(setting, text, Source.ENVIRONMENT, setting.environment)
    for name, given in (flags or {}).items():
        if given is not None:
            setting = _find(settings, name)
            values[name] = _resolve(setting, given, Source.FLAG, setting.flag)
    return values


def flatten_settings(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a file as a flat dictionary with dotted names."""
    flat: dict[str, Any] = {}
    for area, table in file.items():
        if isinstance(table, Mapping):
            flat.update({f"{area}.{key}": value for key, value in table.items()})
        else:
            flat[area] = table
    return flat


def _find(settings: Mapping[str, Setting], name: str) -> Setting:
    setting = settings.get(name)
    if setting is None:
        import difflib  # only for mistakes

        near = difflib.get_close_matches(name, settings, n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}?" if near else None
        raise error("setting_invalid", hint=hint, name=name, source="the file", reason="there is no such setting")
    return setting


def _resolve_pinch(environ: Mapping[str, str], settings: Mapping[str, Setting], listen: str) -> dict[str, Resolved]:
    """Return the settings from the environment of a Pinch relay."""
    try:
        found = read_pinch_environment(environ, listen)
    except PinchVariableInvalid as fault:
        name, variable, _value = fault.source
        raise error("setting_invalid", name=name, source=variable, reason=str(fault)) from fault
    return {
        each.setting: _resolve(_find(settings, each.setting), each.value, Source.ENVIRONMENT, each.variable)
        for each in found
    }


def _resolve(setting: Setting, given: Any, source: Source, where: str) -> Resolved:
    is_text = isinstance(given, str) and source is not Source.FILE
    read: Callable[[Any], Value] = setting.read_text if is_text else setting.read
    try:
        return Resolved(setting, read(given), source)
    except ValueError as fault:
        raise error("setting_invalid", name=setting.name, source=where, reason=str(fault)) from fault
