"""Leases and fencing tokens: the rules of locks as pure functions over a frozen row.

Tokens come from one counter per store, so they grow strictly over all locks, and through every restart and restore.
A lease is active if now < deadline, compared at the time of use, in boot time: wall-clock steps change nothing. A
consumer of a fence stores the highest token it has seen and refuses lower ones; `strict` also refuses an equal one.
The relay checks a fence tag against the lock itself. Refusals are values; the caller raises or returns them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from posthouse.model.errors import error
from posthouse.model.limits import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    MICROSECOND_NS,
    MILLISECOND_NS,
    REQUEST_ID_MAX_BYTES,
    REQUEST_RECORD_S,
    RESOURCE_MAX_BYTES,
    SAFE_INTEGER_MAX,
    SECOND_NS,
)

_CLOCK_TOKEN_MAX = SAFE_INTEGER_MAX - 2**40  # the year 2255; leaves a clock that is centuries ahead room to count


class LockRow(msgspec.Struct, frozen=True):
    """The stored state of one resource."""

    resource: str
    #: the holder, or the last one
    owner: str
    #: of the current or the last grant
    token: int
    lease_ms: int
    deadline_boot_ns: int
    is_released: bool = False


class RequestRecord(msgspec.Struct, frozen=True):
    """A granted request_id, kept 24 hours per (mesh, resource, owner): the answer to a retry."""

    request_id: str
    lease_ms: int
    token: int
    #: wall time in the answer
    expires_at_ns: int
    #: wall time of the grant
    granted_at_ns: int


class Grant(msgspec.Struct, frozen=True):
    """An acquire or renew that succeeded."""

    row: LockRow
    #: wall time, for people; clients compute their own deadline
    expires_at_ns: int
    #: the record to store; None without a request_id, or if it is already stored
    record: RequestRecord | None = None
    #: the lease of another grant had expired without a release
    took_over: bool = False
    #: the answer to a retry; nothing needs to be written
    is_repeat: bool = False


class Released(msgspec.Struct, frozen=True):
    """A release that succeeded."""

    row: LockRow


class Denied(msgspec.Struct, frozen=True):
    """A refusal: a registered error code and its fields."""

    code: str
    fields: dict[str, Any] = {}


def remaining_ms(row: LockRow, now_ns: int) -> int:
    """Return the milliseconds until a lease ends, rounded up: after that wait it has ended."""
    return max(0, -((now_ns - row.deadline_boot_ns) // MILLISECOND_NS))


class LockView(msgspec.Struct, frozen=True):
    """The state of a lock as inspect returns it."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


def validate_resource(resource: str) -> str:
    """Return the resource name unchanged, or raise resource_invalid: any text of 1 to 512 bytes."""
    try:
        size = len(resource.encode("utf-8"))
    except (UnicodeEncodeError, AttributeError) as fault:
        raise error("resource_invalid", reason="it is not valid text") from fault
    if not 1 <= size <= RESOURCE_MAX_BYTES:
        raise error("resource_invalid", reason=f"it has {size} bytes, not 1 to {RESOURCE_MAX_BYTES}")
    return resource


def validate_lease_ms(lease_ms: int) -> int:
    """Return the lease unchanged, or raise lease_invalid: 1 s to 10 min."""
    if type(lease_ms) is not int or not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise error("lease_invalid", lease_ms=lease_ms, min_ms=LEASE_MIN_MS, max_ms=LEASE_MAX_MS)
    return lease_ms


def validate_request_id(request_id: str) -> str:
    """Return the request id unchanged, or raise request_id_invalid."""
    valid = type(request_id) is str and request_id.isprintable()
    if not valid or not 1 <= len(request_id.encode("utf-8")) <= REQUEST_ID_MAX_BYTES:
        raise error("request_id_invalid", limit=REQUEST_ID_MAX_BYTES)
    return request_id


def is_active(row: LockRow, now_ns: int) -> bool:
    """Return True if the lease is active: the one rule of all operations."""
    return not row.is_released and now_ns < row.deadline_boot_ns


def acquire(
    row: LockRow | None,
    resource: str,
    owner: str,
    lease_ms: int,
    now_ns: int,
    wall_ns: int,
    next_token: Callable[[], int],
    request_id: str | None = None,
    record: RequestRecord | None = None,
) -> Grant | Denied:
    """Grant the lock, or return the reason for a refusal; `record` is the stored record of the request_id, if any.

    `now_ns` is boot time and decides; `wall_ns` only shows people when the lease ends. A new grant, and nothing else,
    calls `next_token`, once.
    """
    if record is not None and is_record_alive(record, wall_ns):
        return _repeat(row, owner, lease_ms, now_ns, record)
    if row is not None and is_active(row, now_ns):
        if row.owner == owner:
            return Denied("held_by_self", {"token": row.token, "remaining_ms": remaining_ms(row, now_ns)})
        return Denied("held", {"holder": row.owner, "remaining_ms": remaining_ms(row, now_ns)})
    token = next_token()
    expires_at_ns = wall_ns + lease_ms * MILLISECOND_NS
    return Grant(
        LockRow(resource, owner, token, lease_ms, now_ns + lease_ms * MILLISECOND_NS),
        expires_at_ns,
        None if request_id is None else RequestRecord(request_id, lease_ms, token, expires_at_ns, wall_ns),
        took_over=row is not None and not row.is_released,
    )


def renew(row: LockRow | None, owner: str, token: int, lease_ms: int, now_ns: int, wall_ns: int) -> Grant | Denied:
    """Extend an active lease; the token stays."""
    denied = _not_the_holder(row, owner, token, now_ns)
    if row is None or denied is not None:
        return denied or Denied("unknown_resource")
    extended = LockRow(row.resource, row.owner, row.token, lease_ms, now_ns + lease_ms * MILLISECOND_NS)
    return Grant(extended, wall_ns + lease_ms * MILLISECOND_NS)


def release(row: LockRow | None, owner: str, token: int, now_ns: int) -> Released | Denied:
    """End an active lease; row and token stay for the next grant."""
    denied = _not_the_holder(row, owner, token, now_ns)
    if row is None or denied is not None:
        return denied or Denied("unknown_resource")
    return Released(LockRow(row.resource, row.owner, row.token, row.lease_ms, row.deadline_boot_ns, True))


def inspect(row: LockRow | None, resource: str, now_ns: int) -> LockView:
    """Return the holder of a resource; a free one has its last token, a resource never locked has token 0."""
    if row is None or not is_active(row, now_ns):
        return LockView(resource, False, None, 0 if row is None else row.token, 0)
    return LockView(resource, True, row.owner, row.token, remaining_ms(row, now_ns))


def reopen(row: LockRow, now_ns: int, over_before_ns: int = 0, void_token: int = 0) -> LockRow:
    """Return the row after a restart: a lease that may be active gets its full length again, counted from `now_ns`.

    A deadline at or before `over_before_ns` had passed before the restart: that lease stays over. A `void_token`
    (0: none) replaces the token, so that the holder can no longer use its own.
    """
    if row.is_released:
        return row
    deadline_ns = row.deadline_boot_ns
    is_over = deadline_ns <= over_before_ns
    return replace(
        row,
        token=void_token or row.token,
        deadline_boot_ns=min(deadline_ns, now_ns) if is_over else now_ns + row.lease_ms * MILLISECOND_NS,
    )


def first_counter(counter: int, wall_ns: int) -> int:
    """Return the counter of tokens at a start, a restore or a change of store: at least the time in microseconds.

    No relay grants a million locks a second, so a counter never overtakes the clock: the result exceeds every token
    of a history that this store has lost.
    """
    return max(counter, min(wall_ns // MICROSECOND_NS, _CLOCK_TOKEN_MAX))


def is_record_alive(record: RequestRecord, wall_ns: int) -> bool:
    """Return True if a request record is still valid."""
    return wall_ns - record.granted_at_ns < REQUEST_RECORD_S * SECOND_NS


def _repeat(row: LockRow | None, owner: str, lease_ms: int, now_ns: int, record: RequestRecord) -> Grant | Denied:
    if lease_ms != record.lease_ms:
        return Denied("request_reused", {"request_id": record.request_id})
    if row is None or not is_active(row, now_ns) or (row.owner, row.token) != (owner, record.token):
        return Denied("request_spent", {"request_id": record.request_id, "token": record.token})
    granted = replace(row, lease_ms=record.lease_ms)
    return Grant(granted, record.expires_at_ns, is_repeat=True)


def _not_the_holder(row: LockRow | None, owner: str, token: int, now_ns: int) -> Denied | None:
    if row is None:
        return Denied("unknown_resource")
    if row.owner != owner or row.is_released or token > row.token:
        return Denied("not_holder")
    if token < row.token:
        return Denied("stale_token", {"token": row.token})
    return None if is_active(row, now_ns) else Denied("lease_expired")


class FenceTag(NamedTuple):
    """The content of a fence tag."""

    resource: str
    token: int
    is_strict: bool


def fence_admits(last_seen: int | None, token: int, strict: bool = False) -> bool:
    """Return True if a consumer that has seen `last_seen` may accept a write with this token."""
    if last_seen is None:
        return True
    return token > last_seen if strict else token >= last_seen


def fence_error(
    fence: FenceTag,
    author: str,
    row: LockRow | None,
    now_ns: int,
    last_written: int | None = None,
) -> Literal["fence_stale", "fence_unknown"] | None:
    """Return why the relay refuses a fenced event, or None.

    `last_written` is the token of the last fenced write of the same coordinate under the same resource; only a
    strict fence uses it.
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
