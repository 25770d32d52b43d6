"""Durations on the command line: a number and a unit, such as 90s, 15m, 2h or 1d."""

from __future__ import annotations

import re

from posthouse.model.errors import error

_FORM = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_duration(text: str) -> float:
    """Return the seconds a text names, or raise a usage error."""
    found = _FORM.fullmatch(text)
    if found is None or not int(found["number"]):
        raise error("usage", text=f"{text!r} is no duration", hint="Give a number and a unit: 90s, 15m, 2h, 1d.")
    return float(int(found["number"]) * _SECONDS[found["unit"]])
