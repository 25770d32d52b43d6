"""Usage limits: whether a failed turn of a coding agent hit one, and when its account may be used again.

Pure. Programs name the kind of a failure; the time stands in a sentence for people, whose form changes between
versions. So a sentence without a recognized time means LIMIT_S: if that is too short, the program reports the next
failure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from posthouse.model.limits import DAY_S, SECOND_NS

#: kinds of failures, as Claude Code names them, after which another turn would fail as well
LIMIT_KINDS = frozenset({"rate_limit", "billing_error"})
LIMIT_S = 900  # short enough to lose little work, long enough not to hammer the account
_MOST_S = 8 * DAY_S  # the longest limits are weekly
_EPOCH = re.compile(r"\|(\d{10})\b")
_RESETS = re.compile(
    r"\bresets?(?: at)? (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})(?:,| at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))? ?(?P<half>am|pm)?\b(?: \((?P<zone>[A-Za-z0-9_/+-]+)\))?"
)
_NOON = 12
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def resume_at_ns(text: str, now_ns: int) -> int:
    """Return the time from which a program may be woken again, according to its message about the limit."""
    now = datetime.fromtimestamp(now_ns // SECOND_NS, UTC)
    found = _read_time(text, now)
    if found is None or not now < found <= now + timedelta(seconds=_MOST_S):
        return now_ns + LIMIT_S * SECOND_NS
    return int(found.timestamp()) * SECOND_NS


def _read_time(text: str, now: datetime) -> datetime | None:
    if epoch := _EPOCH.search(text):
        return datetime.fromtimestamp(int(epoch[1]), UTC)
    match = _RESETS.search(text)
    if match is None:
        return None
    here = now.astimezone(_zone(match["zone"]))
    hour = int(match["hour"]) if match["half"] is None else int(match["hour"]) % _NOON
    hour += _NOON if match["half"] == "pm" else 0
    try:
        found = here.replace(hour=hour, minute=int(match["minute"] or 0), second=0)
        if match["month"] is not None:
            return found.replace(month=_MONTHS.index(match["month"]) + 1, day=int(match["day"]))
    except ValueError:  # no such hour or day
        return None
    return found if found > here else found + timedelta(days=1)


def _zone(name: str | None) -> tzinfo | None:
    """Return a time zone by its name; the one of this machine if none is given or known."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return None if name is None else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None
