"""Timestamps as text: ISO-8601 in UTC with milliseconds and a `Z`, the form bus files carry.

Only this one form is written; reading also takes other fractions and offsets, because other programs write
bus files too. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def format_utc(wall_ns: int) -> str:
    """Return the time as in 2026-01-31T09:30:00.250Z; digits below the millisecond are cut off."""
    seconds, rest = divmod(wall_ns, SECOND_NS)
    return f"{_format_second(seconds)}.{rest // 1_000_000:03d}Z"


def parse_utc(text: str) -> int:
    """Return nanoseconds since 1970, or raise value_invalid; a time without its zone is refused."""
    if type(text) is not str:
        raise error("value_invalid", name="timestamp", reason=f"{text!r} is not ISO-8601 with a zone")
    return _parse(text)


@lru_cache(maxsize=64)  # many messages are made within one second
def _format_second(seconds: int) -> str:
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


@lru_cache(maxsize=4096)  # a message's time is read when it is made, stored and handled
def _parse(text: str) -> int:
    form = _FORM.fullmatch(text)
    if form is None:
        raise error("value_invalid", name="timestamp", reason=f"{text!r} is not ISO-8601 with a zone")
    fraction = (form[1] or ".")[1:]
    try:
        moment = datetime.fromisoformat(text.replace(form[1] or "", "", 1) if form[1] else text)
    except ValueError as fault:
        raise error("value_invalid", name="timestamp", reason=str(fault)) from fault
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return whole * SECOND_NS + int(fraction.ljust(9, "0"))
