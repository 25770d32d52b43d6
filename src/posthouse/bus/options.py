"""Options of a Bus: constructor arguments, and the user's settings where a program gives none.

An argument wins over the environment (POSTHOUSE_BUS_MAX_HOPS and so on), the environment over the file config.toml in
the home directory of posthouse, the file over the default. An empty variable means not set. Only the settings without
an argument are read, so that a mistake in another setting, such as one of the relay's, cannot keep a bus from opening.
Rate limit, breaker and back-pressure are not settings: they live in the bus's own config.json (operator_files). The
checks of arguments at the end are used by every part of the bus; subjects and ids have theirs in the model.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from posthouse.files import home_directory
from posthouse.model.budget import BudgetCeiling, CycleRule
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES
from posthouse.model.reliability import Reliability
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import Resolved, Source, flatten_settings, resolve_settings

Durability = Literal["process", "power"]
_DIRECTORY = "bus.dir"
_RETENTION = ("journal.keep_days", "journal.max_bytes", "journal.lake")
_ARGUMENTS = (
    "bus.durability",
    "bus.cycle_rule",
    "bus.max_hops",
    "bus.default_ttl_ms",
    "bus.default_call_budget",
    "bus.handler_timeout_s",
    "bus.max_attempts",
    "bus.max_listeners",
    "bus.max_payload_bytes",
)
#: arguments that are whole numbers, with the smallest allowed
_COUNTS = {
    "max_hops": 1,
    "default_ttl_ms": 0,
    "default_call_budget": 0,
    "max_attempts": 1,
    "max_listeners": 1,
    "max_payload_bytes": 1,
}


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the journal is kept."""

    keep_days: float = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: if set, only records that this lake has committed are pruned
    lake: str | None = None


@dataclass(frozen=True, slots=True)
class BusOptions:
    """Everything a session needs to know to open a data directory."""

    path: Path
    ceiling: BudgetCeiling
    cycle_rule: CycleRule
    is_power_safe: bool
    handler_timeout_s: float
    max_attempts: int
    max_listeners: int
    max_payload_bytes: int
    #: the defaults of what config.json does not name
    reliability: Reliability
    #: the settings of the bus by name, and where each comes from: default, file, environment or argument
    settings: Mapping[str, Any]
    sources: Mapping[str, str]
    #: None: read the user's settings whenever the journal is pruned
    retention: Retention | None
    clock: Clock


def bus_options(
    path: str | os.PathLike[str] | None,
    arguments: Mapping[str, Any],
    reliability: Reliability,
    retention: Retention | None,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> BusOptions:
    """Return the options of a Bus; `arguments` that are None are taken from environment, file or default.

    `arguments` are keyed by setting without its area, such as `max_hops`.
    """
    check_type("path", path, str, os.PathLike)
    check_type("reliability", reliability, Reliability)
    check_type("retention", retention, Retention)
    check_choice("durability", arguments["durability"], get_args(Durability))
    check_choice("cycle_rule", arguments["cycle_rule"], get_args(CycleRule))
    check_positive("handler_timeout_s", arguments["handler_timeout_s"])
    for name, minimum in _COUNTS.items():
        if arguments[name] is not None:
            check_count(name, arguments[name], minimum)
    values: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    missing = [name for name in _ARGUMENTS if name.removeprefix("bus.") not in values]
    resolved = _resolve(missing, environ)
    values |= {name.removeprefix("bus."): found.value for name, found in resolved.items()}
    return BusOptions(
        path=default_directory(environ) if path is None else Path(path),
        ceiling=BudgetCeiling(
            max_hops=values["max_hops"], ttl_ms=values["default_ttl_ms"], call_budget=values["default_call_budget"]
        ),
        cycle_rule=values["cycle_rule"],
        is_power_safe=values["durability"] == "power",
        handler_timeout_s=values["handler_timeout_s"],
        max_attempts=values["max_attempts"],
        max_listeners=values["max_listeners"],
        max_payload_bytes=values["max_payload_bytes"],
        reliability=reliability,
        settings={name: values[name.removeprefix("bus.")] for name in _ARGUMENTS},
        sources={name: resolved[name].source.value if name in resolved else "argument" for name in _ARGUMENTS},
        retention=retention,
        clock=clock,
    )


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return the data directory of a Bus that is opened without a path."""
    found = _resolve((_DIRECTORY,), environ)[_DIRECTORY]
    if found.source is Source.DEFAULT:
        return home_directory(environ) / "bus"
    return Path(str(found.value)).expanduser()


def journal_retention(environ: Mapping[str, str] = os.environ) -> Retention:
    """Return the retention that environment and file set; raise if either is invalid."""
    values = {name.removeprefix("journal."): found.value for name, found in _resolve(_RETENTION, environ).items()}
    return msgspec.convert(values, Retention)


def _resolve(names: Collection[str], environ: Mapping[str, str]) -> dict[str, Resolved]:
    if not names:
        return {}
    settings = {name: SETTINGS[name] for name in names}
    file = {name: value for name, value in flatten_settings(_read_file(environ)).items() if name in settings}
    given = {name: value for name, value in environ.items() if value}  # an empty variable means not set
    return resolve_settings(file, given, settings=settings)


def _read_file(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        path = home_directory(environ) / "config.toml"
    except RuntimeError:  # a user without a home directory, such as in a container, has no file
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as failure:
        raise error("config_unreadable", path=str(path), reason=str(failure)) from failure


# checks of arguments: a mistake raises value_invalid before anything is stored


def check_positive(name: str, value: object, *, required: bool = False) -> None:
    """Raise value_invalid unless the value is a positive finite number, or None where that is allowed."""
    if value is None and not required:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error("value_invalid", name=name, reason=f"{value!r} is not a positive number")


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise value_invalid unless the value is a whole number of at least `minimum`."""
    if type(value) is not int or value < minimum:
        raise error("value_invalid", name=name, reason=f"{value!r} is not a whole number of at least {minimum}")


def check_handler(name: str, value: object) -> None:
    """Raise value_invalid unless the value can be called."""
    if not callable(value):
        reason = f"{type(value).__name__} is not a function that takes a message"
        raise error("value_invalid", name=name, reason=reason)


def check_type(name: str, value: object, *types: type, required: bool = False) -> None:
    """Raise value_invalid unless the value has one of these types, or is None where that is allowed."""
    if (value is not None or required) and not isinstance(value, types):
        wanted = " or ".join(kind.__name__ for kind in types)
        raise error("value_invalid", name=name, reason=f"{type(value).__name__} is not {wanted}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise value_invalid unless the value is one of the choices, or None."""
    if value is not None and value not in choices:
        raise error("value_invalid", name=name, reason=f"{value!r} is not one of {', '.join(choices)}")
