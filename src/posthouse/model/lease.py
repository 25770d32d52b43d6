"""Leases and fencing tokens: the rules of locks as pure functions over frozen rows.

Tokens come from one counter per store, so they grow strictly over all locks, and through every restart and restore.
A lease is active if now < deadline, compared at the time of use, in boot time: wall-clock steps change nothing. A
grant ends every expired lease that it overlaps, so no restart can bring two leases back that exclude each other.
What a lock covers is in posthouse.model.lock_scope. A consumer of a fence stores the highest token it has seen and
refuses lower ones; `strict` also refuses an equal one. The relay checks a fence tag against the leases themselves.
Refusals are values; the caller raises or returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from posthouse.model import limits
from posthouse.model.errors import error
from posthouse.model.lock_scope import Asked, Claim, covers, first_conflict, is_same_holder

_CLOCK_TOKEN_MAX = (
    limits.SAFE_INTEGER_MAX - 2**40
)  # the year 2255; leaves a clock that is centuries ahead room to count


class LockRow(msgspec.Struct, frozen=True):
    """The stored lease of one holder on one resource; a free resource keeps the row of its last holder."""

    resource: str
    #: the node that holds it, or held it last
    owner: str
    #: of the current or the last grant
    token: int
    lease_ms: int
    deadline_boot_ns: int
    is_released: bool = False
    session: str = ""
    is_tree: bool = False
    is_shared: bool = False


class LeaseRequest(msgspec.Struct, frozen=True):
    """What an acquire asks for: claims of one holder in one mode; all of them are granted or none."""

    claims: tuple[Asked, ...]
    lease_ms: int
    request_id: str | None = None

    @property
    def parameters(self) -> str:
        """What a retry must repeat, besides the first resource and the lease; empty for a plain exclusive lock."""
        first = self.claims[0]
        if len(self.claims) == 1 and not first.is_tree and not first.is_shared:
            return ""
        names = [claim.resource for claim in self.claims[1:]]
        return msgspec.json.encode((first.is_tree, first.is_shared, names)).decode()


class RequestRecord(msgspec.Struct, frozen=True):
    """A granted request_id, kept 24 hours per (mesh, resource, owner, session): the answer to a retry."""

    request_id: str
    lease_ms: int
    token: int
    #: wall time in the answer
    expires_at_ns: int
    #: wall time of the grant
    granted_at_ns: int
    #: LeaseRequest.parameters of the request
    parameters: str = ""


class Grant(msgspec.Struct, frozen=True):
    """An acquire or renew that succeeded: one row per resource, all with one token."""

    rows: tuple[LockRow, ...]
    #: wall time, for people; clients compute their own deadline
    expires_at_ns: int
    #: the record to store; None without a request_id, or if it is already stored
    record: RequestRecord | None = None
    #: leases that had expired without a release and overlap the grant, which ends them
    expired: tuple[LockRow, ...] = ()
    #: the answer to a retry; nothing needs to be written
    is_repeat: bool = False

    @property
    def row(self) -> LockRow:
        """The row of the first resource."""
        return self.rows[0]

    @property
    def took_over(self) -> bool:
        """Whether the grant ended the lease of another grant."""
        return bool(self.expired)


class Released(msgspec.Struct, frozen=True):
    """A release that succeeded: the rows as they were held, ended."""

    rows: tuple[LockRow, ...]


class Denied(msgspec.Struct, frozen=True):
    """A refusal: a registered error code and its fields."""

    code: str
    fields: dict[str, Any] = {}


def remaining_ms(row: LockRow, now_ns: int) -> int:
    """Return the milliseconds until a lease ends, rounded up: after that wait it has ended."""
    return max(0, -((now_ns - row.deadline_boot_ns) // limits.MILLISECOND_NS))


class LockView(msgspec.Struct, frozen=True):
    """The state of a lock as inspect returns it."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int
    #: the active leases that cover the resource, the one that lasts longest first
    holders: tuple[LockRow, ...] = ()
    #: the node that held it last
    last_owner: str | None = None


def validate_lease_ms(lease_ms: int) -> int:
    """Return the lease unchanged, or raise lease_invalid: 1 s to 10 min."""
    if type(lease_ms) is not int or not limits.LEASE_MIN_MS <= lease_ms <= limits.LEASE_MAX_MS:
        raise error("lease_invalid", lease_ms=lease_ms, min_ms=limits.LEASE_MIN_MS, max_ms=limits.LEASE_MAX_MS)
    return lease_ms


def validate_request_id(request_id: str) -> str:
    """Return the request id unchanged, or raise request_id_invalid."""
    valid = type(request_id) is str and request_id.isprintable()
    if not valid or not 1 <= len(request_id.encode("utf-8")) <= limits.REQUEST_ID_MAX_BYTES:
        raise error("request_id_invalid", limit=limits.REQUEST_ID_MAX_BYTES)
    return request_id


def is_active(row: LockRow, now_ns: int) -> bool:
    """Return True if the lease is active: the one rule of all operations."""
    return not row.is_released and now_ns < row.deadline_boot_ns


def acquire(
    request: LeaseRequest,
    rows: Sequence[LockRow],
    now_ns: int,
    wall_ns: int,
    next_token: Callable[[], int],
    record: RequestRecord | None = None,
    rival: Claim | None = None,
) -> Grant | Denied:
    """Grant every claim of a request, or none and return the reason.

    `rows` are the unreleased leases that overlap the request, `record` the stored record of its request_id, `rival`
    an earlier request that conflicts and still waits. `now_ns` is boot time and decides; `wall_ns` only shows people
    when the lease ends. A new grant, and nothing else, calls `next_token`, once.
    """
    if record is not None and is_record_alive(record, wall_ns):
        return _repeat(request, rows, now_ns, record)
    refusal = _must_wait(request, rows, now_ns, rival)
    if refusal is not None:
        return refusal
    token, lease_ms = next_token(), request.lease_ms
    deadline_ns, expires_at_ns = now_ns + lease_ms * limits.MILLISECOND_NS, wall_ns + lease_ms * limits.MILLISECOND_NS
    if request.request_id is not None:
        record = RequestRecord(request.request_id, lease_ms, token, expires_at_ns, wall_ns, request.parameters)
    return Grant(
        tuple(
            [
                LockRow(
                    asked.resource,
                    asked.owner,
                    token,
                    lease_ms,
                    deadline_ns,
                    False,
                    asked.session,
                    asked.is_tree,
                    asked.is_shared,
                )
                for asked in request.claims
            ]
        ),
        expires_at_ns,
        record,
        tuple([row for row in rows if not is_active(row, now_ns)]),
    )


def _must_wait(request: LeaseRequest, rows: Sequence[LockRow], now_ns: int, rival: Claim | None) -> Denied | None:
    """Return the refusal of a request that cannot be granted now: `held` may wait, `held_by_self` may not."""
    if not rows and rival is None:
        return None
    active = [row for row in rows if is_active(row, now_ns)]
    asked = request.claims[0]
    own = next((row for row in active if is_same_holder(asked, row)), None)
    if own is not None:
        return Denied("held_by_self", {"remaining_ms": remaining_ms(own, now_ns), **_named(request, own)})
    holder = first_conflict(request.claims, active)
    if holder is not None:
        fields = {"holder": holder.owner, "remaining_ms": remaining_ms(holder, now_ns)}
        return Denied("held", fields | _named(request, holder))
    if rival is not None:
        return Denied("held", {"holder": rival.owner, "remaining_ms": 0, "is_waiting": True} | _named(request, rival))
    return None


def _named(request: LeaseRequest, other: Claim) -> dict[str, str]:
    """Return the name of the other claim if it differs from the requested one."""
    return {} if other.resource == request.claims[0].resource else {"blocked_by": other.resource}


def find_lease(rows: Sequence[LockRow], owner: str, session: str | None, token: int) -> LockRow | None:
    """Return the row that renew and release refer to: the one with the token if given, else one of the owner.

    Without a session (None) a node may use the token of any of its sessions.
    """
    own = [row for row in rows if row.owner == owner and session in (None, row.session)]
    return next((row for row in own if row.token == token), None) or next(iter(own or rows), None)


def renew(
    row: LockRow | None, owner: str, token: int, lease_ms: int, now_ns: int, wall_ns: int, session: str | None = None
) -> Grant | Denied:
    """Extend an active lease; the token stays."""
    denied = _not_the_holder(row, owner, session, token, now_ns)
    if row is None or denied is not None:
        return denied or Denied("unknown_resource")
    extended = replace(row, lease_ms=lease_ms, deadline_boot_ns=now_ns + lease_ms * limits.MILLISECOND_NS)
    return Grant((extended,), wall_ns + lease_ms * limits.MILLISECOND_NS)


def release(row: LockRow | None, owner: str, token: int, now_ns: int, session: str | None = None) -> Released | Denied:
    """End an active lease."""
    denied = _not_the_holder(row, owner, session, token, now_ns)
    if row is None or denied is not None:
        return denied or Denied("unknown_resource")
    return Released((ended(row),))


def ended(row: LockRow) -> LockRow:
    """Return a row whose lease was released, was broken, or had expired when another grant needed its place."""
    return LockRow(
        row.resource,
        row.owner,
        row.token,
        row.lease_ms,
        row.deadline_boot_ns,
        True,
        row.session,
        row.is_tree,
        row.is_shared,
    )


def inspect(rows: Sequence[LockRow], resource: str, now_ns: int) -> LockView:
    """Return the holders of a resource; a free one has its last token, a resource never locked has token 0."""
    covering = [row for row in rows if covers(row, resource)]
    active = [row for row in covering if is_active(row, now_ns)]
    if active:
        active.sort(key=lambda row: (-row.deadline_boot_ns, row.token))
        first = active[0]
        return LockView(resource, True, first.owner, first.token, remaining_ms(first, now_ns), tuple(active))
    last = max((row for row in covering if row.resource == resource), key=lambda row: row.token, default=None)
    return LockView(resource, False, None, 0, 0) if last is None else _free_view(last)


def _free_view(last: LockRow) -> LockView:
    return LockView(last.resource, False, None, last.token, 0, last_owner=last.owner)


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
        deadline_boot_ns=min(deadline_ns, now_ns) if is_over else now_ns + row.lease_ms * limits.MILLISECOND_NS,
    )


def first_counter(counter: int, wall_ns: int) -> int:
    """Return the counter of tokens at a start, a restore or a change of store: at least the time in microseconds.

    No relay grants a million locks a second, so a counter never overtakes the clock: the result exceeds every token
    of a history that this store has lost.
    """
    return max(counter, min(wall_ns // limits.MICROSECOND_NS, _CLOCK_TOKEN_MAX))


def is_record_alive(record: RequestRecord, wall_ns: int) -> bool:
    """Return True if a request record is still valid."""
    return wall_ns - record.granted_at_ns < limits.REQUEST_RECORD_S * limits.SECOND_NS


def _repeat(request: LeaseRequest, rows: Sequence[LockRow], now_ns: int, record: RequestRecord) -> Grant | Denied:
    if (request.lease_ms, request.parameters) != (record.lease_ms, record.parameters):
        return Denied("request_reused", {"request_id": record.request_id})
    held = {
        row.resource: row
        for row in rows
        if row.token == record.token and is_same_holder(row, request.claims[0]) and is_active(row, now_ns)
    }
    if any(asked.resource not in held for asked in request.claims):
        return Denied("request_spent", {"request_id": record.request_id, "token": record.token})
    granted = tuple([replace(held[asked.resource], lease_ms=record.lease_ms) for asked in request.claims])
    return Grant(granted, record.expires_at_ns, is_repeat=True)


def _not_the_holder(row: LockRow | None, owner: str, session: str | None, token: int, now_ns: int) -> Denied | None:
    if row is None:
        return Denied("unknown_resource")
    if row.owner != owner or session not in (None, row.session) or row.is_released or token > row.token:
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
    rows: Sequence[LockRow],
    now_ns: int,
    last_written: int | None = None,
) -> Literal["fence_stale", "fence_unknown"] | None:
    """Return why the relay refuses a fenced event, or None.

    The token must be an active exclusive grant of the author that covers the resource: its own name, or a tree above
    it. `last_written` is the token of the last fenced write of the same coordinate under the same resource; only a
    strict fence uses it.
    """
    covering = [row for row in rows if covers(row, fence.resource)]
    row = next((row for row in covering if row.token == fence.token and row.owner == author), None)
    if row is None:
        is_older = any(row.token > fence.token for row in covering)
        return "fence_stale" if is_older else "fence_unknown"
    if row.is_shared:
        return "fence_unknown"
    if not is_active(row, now_ns):
        return "fence_stale"
    if fence.is_strict and not fence_admits(last_written, fence.token, strict=True):
        return "fence_stale"
    return None
