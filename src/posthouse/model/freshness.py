"""How long a message is valid: the well-known members of `meta` that say so, and the age as people read it.

    supersedes     id of an earlier message of the same sender that this one replaces while it is unread
    withdraws      id of an earlier message of the same sender that is no longer valid; this message says nothing else
    valid_until    time after which the message is stale: a reader asks its sender before it acts on it
    failure        true if the message only reports a failure: it wakes no agent

Meta comes from other members, so a member that breaks its form is ignored. Whether the earlier message is really one
of the same sender is checked where it is stored. If you change a member: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from posthouse.model.clock import parse_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_event_id
from posthouse.model.limits import DAY_S, HOUR_S, MINUTE_S

SUPERSEDES, WITHDRAWS, VALID_UNTIL, FAILURE = "supersedes", "withdraws", "valid_until", "failure"
_OURS = (SUPERSEDES, WITHDRAWS, VALID_UNTIL, FAILURE)


class Freshness(NamedTuple):
    """The well-known members of a message's meta."""

    supersedes: str | None = None
    withdraws: str | None = None
    #: wall nanoseconds
    valid_until_ns: int | None = None
    is_failure: bool = False


def read_freshness(meta: Any) -> Freshness:
    """Return the well-known members of a meta value."""
    if not isinstance(meta, dict):
        return Freshness()
    return Freshness(
        _event_id(meta.get(SUPERSEDES)),
        _event_id(meta.get(WITHDRAWS)),
        _time_ns(meta.get(VALID_UNTIL)),
        meta.get(FAILURE) is True,
    )


def with_freshness(meta: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a meta value with well-known members added; raises value_invalid if it has another value for one."""
    added = {name: value for name, value in given.items() if value is not None and value is not False}
    own = dict(meta or {})
    for name in _OURS:
        if name in added and own.get(name, added[name]) != added[name]:
            raise error("value_invalid", name="meta", reason=f"its member {name} differs from the argument {name}")
    return own | added or None


def age_text(age_s: float) -> str:
    """Return an age as people write it: 12 s, 3 min, 5 h, 2 d."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if age_s >= unit_s:
            return f"{int(age_s // unit_s)} {unit}"
    return f"{int(age_s)} s"


def _event_id(value: Any) -> str | None:
    return value if isinstance(value, str) and is_event_id(value) else None


def _time_ns(value: Any) -> int | None:
    try:
        return parse_utc(value) if isinstance(value, str) else None
    except PosthouseError:
        return None
