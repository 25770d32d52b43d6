"""Limits of a mesh: how much it may store and for how long, how fast it may write, and what happens when it is full.

A mesh has two sets of limits: its own, which its admins set, and those that the relay's admins allow; for each limit
the stricter one is in force. None means no limit. Everything here is pure; the relay counts and compares.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import KIND_MAX, kind_class
from posthouse.model.limits import INT64_MAX, SECOND_NS

MAX_AGE_RULES = 50  # of one mesh: every stored event is compared with all of them
_MIN_AGE_S = 60  # a sweep is not faster


_MAX_AGE_S = INT64_MAX // SECOND_NS
# What validate_limits checks, for the OpenAPI document: its errors name the limit.
Limit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": INT64_MAX})]
AnyKind = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": KIND_MAX})]


class OnFull(enum.StrEnum):
    """The treatment of a new event in a full mesh."""

    #: it is refused with mesh_full
    REFUSE = "refuse"
    #: the oldest events that nothing needs make room
    DROP_OLDEST = "drop_oldest"


class AgeLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long events of some kinds are kept, by their creation time."""

    first_kind: AnyKind
    last_kind: AnyKind
    max_age_s: Annotated[int, Meta(extra_json_schema={"minimum": _MIN_AGE_S, "maximum": _MAX_AGE_S})]


class MeshLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One set of limits; None: no limit."""

    #: events with content
    max_events: Limit | None = None
    #: bytes of their JSON
    max_bytes: Limit | None = None
    max_members: Limit | None = None
    max_topics: Limit | None = None
    #: versions kept of each coordinate, the current one included
    versions: Limit | None = None
    events_per_s: Limit | None = None
    bytes_per_s: Limit | None = None
    max_age: Annotated[tuple[AgeLimit, ...], Meta(extra_json_schema={"maxItems": MAX_AGE_RULES})] = ()
    on_full: OnFull | None = None

    @property
    def is_bounded(self) -> bool:
        """True if a new event may find the mesh full."""
        return self.max_events is not None or self.max_bytes is not None

    @property
    def is_swept(self) -> bool:
        """True if the sweeper has work in the mesh."""
        return bool(self.max_age) or self.versions is not None

    def max_age_ns(self, kind: int) -> int | None:
        """Return how long events of a kind are kept, None: forever."""
        ages = [each.max_age_s for each in self.max_age if each.first_kind <= kind <= each.last_kind]
        return min(ages) * SECOND_NS if ages else None


NO_LIMITS = MeshLimits()
#: the limits that are one number
NUMBERS = ("max_events", "max_bytes", "max_members", "max_topics", "versions", "events_per_s", "bytes_per_s")


def validate_limits(limits: MeshLimits) -> MeshLimits:
    """Return the limits unchanged, or raise mesh_limit_invalid for the first invalid one."""
    for name in NUMBERS:
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= INT64_MAX:
            raise error("mesh_limit_invalid", name=name, reason=f"{value} is not a number from 1 to {INT64_MAX}")
    if len(limits.max_age) > MAX_AGE_RULES:
        raise error("mesh_limit_invalid", name="max_age", reason=f"there are more than {MAX_AGE_RULES} ranges of kinds")
    for fault in filter(None, map(_age_fault, limits.max_age)):
        raise error("mesh_limit_invalid", name="max_age", reason=fault)
    return limits


def _age_fault(limit: AgeLimit) -> str | None:
    try:
        kind_class(limit.first_kind)
        kind_class(limit.last_kind)
    except PosthouseError as fault:
        return str(fault)
    if limit.first_kind > limit.last_kind:
        return f"the range of kinds {limit.first_kind}-{limit.last_kind} ends before it begins"
    if not _MIN_AGE_S <= limit.max_age_s <= _MAX_AGE_S:
        return f"an age of {limit.max_age_s} s is not from {_MIN_AGE_S} s to 292 years"
    return None


def stricter(own: MeshLimits, allowed: MeshLimits) -> MeshLimits:
    """Return the limits in force, the stricter of each; `on_full` is the mesh's own choice if it has one."""
    numbers = {name: _least(getattr(own, name), getattr(allowed, name)) for name in NUMBERS}
    on_full = own.on_full or allowed.on_full
    return MeshLimits(**numbers, max_age=own.max_age + allowed.max_age, on_full=on_full)


def beyond(own: MeshLimits, allowed: MeshLimits) -> Iterator[tuple[str, int, int]]:
    """Yield each limit that a mesh sets higher than allowed: its name, the requested and the allowed number."""
    for name in NUMBERS:
        wanted, most = getattr(own, name), getattr(allowed, name)
        if wanted is not None and most is not None and wanted > most:
            yield name, wanted, most


def has_reached(limits: MeshLimits, events: int, stored_bytes: int) -> bool:
    """Return True if a mesh with this usage is full."""
    pairs = ((events, limits.max_events), (stored_bytes, limits.max_bytes))
    return any(most is not None and used >= most for used, most in pairs)


def _least(one: int | None, other: int | None) -> int | None:
    return min([each for each in (one, other) if each is not None], default=None)
