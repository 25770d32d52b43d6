"""Lock operations: requests, answers, and the rows that a store keeps.

One struct per operation and per answer, for HTTP and stream alike. `check` validates what the types cannot: the
bytes of a resource, the length of a lease, the form of a request id. A refusal is a value, the error whose problem
is sent.
If you change a field: 1. docs/protocol.md, 2. openapi.json, 3. the client that sends or reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import (
    Denied,
    Grant,
    LockRow,
    LockView,
    Released,
    validate_lease_ms,
    validate_request_id,
    validate_resource,
)
from posthouse.model.limits import INT64_MAX, LOCK_WAIT_MAX_MS, QUERY_MAX_LIMIT
from posthouse.model.node import DEFAULT_MESH

Resource = Annotated[str, Meta(description="Any text of 1 to 512 bytes; it names what is locked.")]
Token = Annotated[int, Meta(description="The fencing token of the grant.", ge=1, le=INT64_MAX)]
LeaseMs = Annotated[int, Meta(description="The length of the lease in milliseconds, 1 s to 10 min.")]
Mesh = Annotated[str, Meta(description="The mesh of the lock.", pattern="^[A-Za-z0-9_-]{1,64}$")]
LockCursor = Annotated[str, Meta(description="Where to go on, as a former answer gave it.", max_length=4096)]


class Acquire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for a lock."""

    resource: Resource
    lease_ms: LeaseMs
    mesh: Mesh = DEFAULT_MESH
    request_id: Annotated[
        str | None, Meta(description="Repeat it unchanged to retry: the grant is answered again, not made twice.")
    ] = None
    wait_ms: Annotated[int, Meta(description="How long to wait in the queue when the lock is held.")] = 0

    def check(self) -> None:
        """Raise resource_invalid, lease_invalid, request_id_invalid or wait_invalid."""
        validate_resource(self.resource)
        validate_lease_ms(self.lease_ms)
        if self.request_id is not None:
            validate_request_id(self.request_id)
        if not 0 <= self.wait_ms <= LOCK_WAIT_MAX_MS:
            raise error("wait_invalid", wait_ms=self.wait_ms, max_ms=LOCK_WAIT_MAX_MS)


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for more time; the lease counts from now."""

    resource: Resource
    token: Token
    lease_ms: LeaseMs
    mesh: Mesh = DEFAULT_MESH

    def check(self) -> None:
        """Raise resource_invalid or lease_invalid."""
        validate_resource(self.resource)
        validate_lease_ms(self.lease_ms)


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give a lock back."""

    resource: Resource
    token: Token
    mesh: Mesh = DEFAULT_MESH

    def check(self) -> None:
        """Raise resource_invalid."""
        validate_resource(self.resource)


class Inspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask who holds a lock."""

    resource: Resource
    mesh: Mesh = DEFAULT_MESH

    def check(self) -> None:
        """Raise resource_invalid."""
        validate_resource(self.resource)


class ListLocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the locks of a mesh, or of all that one may read."""

    mesh: Annotated[str | None, Meta(description="The mesh; without it all that you may read.")] = None
    cursor: LockCursor | None = None
    limit: Annotated[int, Meta(description="How many at most.", ge=1, le=QUERY_MAX_LIMIT)] = QUERY_MAX_LIMIT

    def check(self) -> None:
        """Do nothing: the types validate everything."""


class Granted(msgspec.Struct, frozen=True):
    """The lock is held by its owner until the lease is over; count the lease from before you asked."""

    resource: str
    owner: str
    token: int
    lease_ms: int
    #: wall time, for people; never compare it with a clock
    expires_at_ns: int


class Freed(msgspec.Struct, frozen=True):
    """The lock is free; the token will not be granted again."""

    resource: str
    owner: str
    token: int


class LockState(msgspec.Struct, frozen=True):
    """Who holds a lock, and for how long still; a free one shows its last token, one never locked 0."""

    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class ListedLock(msgspec.Struct, frozen=True):
    """A lock in a list."""

    mesh: str
    resource: str
    held: bool
    owner: str | None
    token: int
    remaining_ms: int


class LockPage(msgspec.Struct, frozen=True):
    """Part of a list of locks; a cursor of null says that there are no more."""

    locks: list[ListedLock]
    cursor: str | None


Success = Granted | Freed | LockState | LockPage
LockAnswer = Success | PosthouseError
#: Called once with the answer, or with the failure of the store; with neither if the caller was gone.
OnLockAnswer = Callable[[LockAnswer | None, BaseException | None], None]


def lock_answer(outcome: Grant | Released | Denied | LockView, resource: str) -> LockAnswer:
    """Return the answer of an outcome."""
    if isinstance(outcome, Denied):
        return error(outcome.code, resource=resource, **outcome.fields)
    if isinstance(outcome, LockView):
        return LockState(outcome.resource, outcome.held, outcome.owner, outcome.token, outcome.remaining_ms)
    row = outcome.row
    if isinstance(outcome, Released):
        return Freed(row.resource, row.owner, row.token)
    return Granted(row.resource, row.owner, row.token, row.lease_ms, outcome.expires_at_ns)


class LockEntry(NamedTuple):
    """One lock of one mesh."""

    mesh: str
    row: LockRow
    #: ticket of the last waiter that was served in this run
    last_ticket: int = 0

    def snapshot(self) -> dict[str, Any]:
        """Return what a snapshot of the journal holds of this lock; a replay has no tickets."""
        row = self.row
        return {
            "mesh": self.mesh,
            "resource": row.resource,
            "owner": row.owner,
            "token": row.token,
            "lease_ms": row.lease_ms,
            "deadline_boot_ns": row.deadline_boot_ns,
            "is_released": row.is_released,
        }


class LockRun(NamedTuple):
    """One run of a relay: boot times are comparable only within it."""

    run_id: str
    #: the epoch of the store; a different one means that the store was restored since
    epoch: str
    boot_id: str
    boot_ns: int
