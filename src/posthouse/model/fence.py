"""Fences: how a consumer tells a late write of a former lock holder from one of the present holder.

A consumer remembers the highest token it has seen and refuses lower ones; strict refuses the same token too, so
that one grant makes one write. The relay also knows the lock itself and judges a ["fence", resource, token] tag by it.
Refusals are values here: whoever keeps the state raises.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from posthouse.model.errors import error
from posthouse.model.kinds import is_replacing
from posthouse.model.lease import LockRow, is_active, validate_resource
from posthouse.model.limits import INT64_MAX

if TYPE_CHECKING:
    from posthouse.model.event import Event

_TOKEN = re.compile(r"[1-9][0-9]{0,18}")


class FenceTag(NamedTuple):
    """What a fence tag claims."""

    resource: str
    token: int
    is_strict: bool


def fence_admits(last_seen: int | None, token: int, strict: bool = False) -> bool:
    """Tell whether a consumer that has seen `last_seen` may take a write with this token."""
    if last_seen is None:
        return True
    return token > last_seen if strict else token >= last_seen


def read_fence_tag(event: Event) -> FenceTag | None:
    """Return the fence an event claims, None when it claims none, or raise tag_malformed."""
    tag = event.tag("fence")
    if tag is None:
        return None
    if not is_replacing(event.kind):
        raise error("tag_malformed", tag="fence", reason="only replaceable and addressable events are fenced")
    if len(tag) not in (3, 4) or (len(tag) == 4 and tag[3] != "strict"):
        raise error("tag_malformed", tag="fence", reason='it is not resource, token and perhaps "strict"')
    if _TOKEN.fullmatch(tag[2]) is None or int(tag[2]) > INT64_MAX:
        raise error("tag_malformed", tag="fence", reason="the token is not a positive integer")
    return FenceTag(validate_resource(tag[1]), int(tag[2]), len(tag) == 4)


def judge_fence(
    fence: FenceTag,
    author: str,
    row: LockRow | None,
    now_ns: int,
    last_written: int | None = None,
) -> Literal["fence_stale", "fence_unknown"] | None:
    """Return why the relay refuses a fenced event, or None.

    `last_written` is the token of the last fenced write of the same coordinate under the same resource; only a
    strict fence looks at it.
    """
    if row is None or fence.token > row.token:
        return "fence_unknown"
    if fence.token < row.token:
        return "fence_stale"
    if author != row.owner:
        return "fence_unknown"
    if not is_active(row, now_ns):
        return "fence_stale"
    if fence.is_strict and not fence_admits(last_written, fence.token, strict=True):
        return "fence_stale"
    return None
