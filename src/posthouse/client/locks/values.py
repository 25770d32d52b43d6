"""What a relay tells about locks, as values."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from posthouse.model.errors import error

T = TypeVar("T")


class LockGrant(msgspec.Struct, frozen=True):
    """A grant. `expires_at_ns` is for people; what counts is the lease, from before it was asked for."""

    resource: str
    owner: str
    token: int
    lease_ms: int
    expires_at_ns: int


class LockStatus(msgspec.Struct, frozen=True):
    """Who holds a lock; a free one shows its last token."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class LockSummary(msgspec.Struct, frozen=True):
    """A lock in a list."""

    mesh: str
    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class LockList(msgspec.Struct, frozen=True):
    """Part of a list of locks; go on with the cursor unless it is None."""

    locks: list[LockSummary]
    cursor: str | None


def read_value(value: Any, type: type[T], relay: str) -> T:  # noqa: A002 - the domain's word
    """Return an answer as its struct, or raise answer_invalid."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as fault:
        raise error("answer_invalid", relay=relay, reason=f"LOCKED is malformed: {fault}") from fault
