"""The environment of Pinch's own relay, read as settings of this one: PINCH_RELAY_PORT and its kin.

Whoever moves a Pinch relay here need not rename anything. A variable of this program's own name, or a flag, goes before
them, they before the file. Each gives the value of one setting, in that setting's unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_HOUR_S = 3_600
_PORT_MAX = 65_535


class Foreign(NamedTuple):
    """A value from the environment of another program."""

    setting: str
    variable: str
    value: Any


class ForeignInvalid(ValueError):
    """A value that cannot be read; `foreign` names the variable."""

    def __init__(self, foreign: Foreign, reason: str) -> None:
        super().__init__(reason)
        self.foreign = foreign


def read_pinch_environment(environ: Mapping[str, str], listen: str) -> list[Foreign]:
    """Return what the variables say, or raise ForeignInvalid; `listen` is where the port goes."""
    found: list[Foreign] = []
    for variable, (setting, read) in _VARIABLES.items():
        text = environ.get(variable)
        if text is None:
            continue
        try:
            found.append(Foreign(setting, variable, read(text.strip(), listen)))
        except ValueError as fault:
            raise ForeignInvalid(Foreign(setting, variable, text), str(fault)) from fault
    return found


def _port(text: str, listen: str) -> str:
    port = _whole(text, listen)
    if not 0 <= port <= _PORT_MAX:
        raise ValueError(f"{text!r} is not a port")
    return f"{listen.rpartition(':')[0]}:{port}"


def _text(text: str, _listen: str) -> str:
    return text


def _whole(text: str, _listen: str) -> int:
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


_VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "PINCH_RELAY_PORT": ("relay.listen", _port),
    "PINCH_RELAY_PUBLIC_HOST": ("relay.pinch_host", _text),
    "PINCH_RELAY_QUEUE_MAX": ("relay.queue_max", _whole),
    "PINCH_RELAY_QUEUE_TTL": ("relay.queue_ttl_s", _hours),
    "PINCH_RELAY_RATE_LIMIT": ("relay.pinch_rate", _number),
    "PINCH_RELAY_RATE_BURST": ("relay.pinch_burst", _whole),
    "PINCH_RELAY_ALLOWED_ORIGINS": ("relay.pinch_origins", _text),
}
PINCH_VARIABLES = tuple(_VARIABLES)
