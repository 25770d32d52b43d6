"""Resolving settings: flag before environment before file before default, and each value knows where it is from.

A value that is not valid is refused wherever it stands, also where a stronger source overrides it: a mistake
should be found when it is made. Reading files and the environment is the caller's work.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posthouse.model.errors import error
from posthouse.model.settings.pinch import ForeignInvalid, read_pinch_environment
from posthouse.model.settings.registry import SETTINGS
from posthouse.model.settings.setting import Setting, Value


class Source(enum.StrEnum):
    """Where a value comes from, weakest first."""

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


def resolve(
    file: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    settings: Mapping[str, Setting] = SETTINGS,
) -> dict[str, Resolved]:
    """Return every setting with its value and source, or raise setting_invalid.

    `file` is the parsed configuration: a table per area, or dotted names. `flags` are keyed by setting name;
    None means not given.
    """
    values = {name: Resolved(setting, setting.default, Source.DEFAULT) for name, setting in settings.items()}
    for name, given in flatten(file or {}).items():
        values[name] = _take(_find(settings, name), given, Source.FILE, f"the file ({name})")
    if "relay.listen" in values:
        values |= _take_pinch(environ or {}, settings, str(values["relay.listen"].value))
    for name, setting in settings.items():
        if (text := (environ or {}).get(setting.environment)) is not None:
            values[name] = _take(setting, text, Source.ENVIRONMENT, setting.environment)
    for name, given in (flags or {}).items():
        if given is not None:
            setting = _find(settings, name)
            values[name] = _take(setting, given, Source.FLAG, setting.flag)
    return values


def flatten(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's tables as dotted names."""
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
        near = difflib.get_close_matches(name, settings, n=1, cutoff=0.6)
        hint = f"Did you mean {near[0]}?" if near else None
        raise error("setting_invalid", hint=hint, name=name, source="the file", reason="there is no such setting")
    return setting


def _take_pinch(environ: Mapping[str, str], settings: Mapping[str, Setting], listen: str) -> dict[str, Resolved]:
    """Return what the environment of a Pinch relay sets."""
    try:
        found = read_pinch_environment(environ, listen)
    except ForeignInvalid as fault:
        name, variable, _value = fault.foreign
        raise error("setting_invalid", name=name, source=variable, reason=str(fault)) from fault
    return {
        each.setting: _take(_find(settings, each.setting), each.value, Source.ENVIRONMENT, each.variable)
        for each in found
    }


def _take(setting: Setting, given: Any, source: Source, where: str) -> Resolved:
    is_text = isinstance(given, str) and source is not Source.FILE
    read: Callable[[Any], Value] = setting.read_text if is_text else setting.read
    try:
        return Resolved(setting, read(given), source)
    except ValueError as fault:
        raise error("setting_invalid", name=setting.name, source=where, reason=str(fault)) from fault
