"""Lock operations: requests, answers, and the rows that a store keeps.

One struct per operation and per answer, for HTTP and stream alike; the answers that clients read are in
posthouse.model.lock_api. `check` validates what the types cannot: the bytes of a resource, the length of a lease, the
form of a request id. A refusal is a value, the error whose problem is sent. Fields that a plain exclusive lock of one
session does not need are optional.
If you change a field: 1. docs/protocol.md, 2. openapi.json, 3. the client that sends or reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from posthouse.model import limits
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import (
    Denied,
    Grant,
    LeaseRequest,
    LockRow,
    LockView,
    Released,
    remaining_ms,
    validate_lease_ms,
    validate_request_id,
)
from posthouse.model.lock_api import LockGrant, LockHolder, LockList, LocksBroken, LockStatus
from posthouse.model.lock_scope import Asked, validate_resource, validate_resources, validate_session
from posthouse.model.node import DEFAULT_MESH

Resource = Annotated[
    str,
    Meta(
        description="Any text of 1 to 512 bytes; it names what is locked.",
        extra_json_schema={"minLength": 1, "maxLength": limits.RESOURCE_MAX_BYTES},
    ),
]
Also = Annotated[
    tuple[Resource, ...],
    Meta(
        description="More resources of the same request: all of them, or none. None of them overlaps another.",
        extra_json_schema={"maxItems": limits.LOCK_RESOURCES_MAX - 1},
    ),
]
Mode = Annotated[
    Literal["exclusive", "shared"], Meta(description="A shared lock excludes exclusive ones, not other shared ones.")
]
Via = Annotated[
    str,
    Meta(description="The program through which a person acts, for the journal.", pattern="^[a-z][a-z0-9-]{0,31}$"),
]
Tree = Annotated[bool, Meta(description="Also lock all names below: a locks a/b, too.")]
Session = Annotated[
    str,
    Meta(
        description="Which of the node's programs holds the lock; sessions of one node wait for each other. Printable.",
        extra_json_schema={"maxLength": limits.SESSION_MAX_BYTES},
    ),
]
AnySession = Annotated[
    str | None,
    Meta(description="The session that holds the lock; without it, any session of the node with this token."),
]
Token = Annotated[int, Meta(description="The fencing token of the grant.", ge=1, le=limits.INT64_MAX)]
LeaseMs = Annotated[
    int,
    Meta(
        description="The length of the lease in milliseconds.",
        extra_json_schema={"minimum": limits.LEASE_MIN_MS, "maximum": limits.LEASE_MAX_MS},
    ),
]
Mesh = Annotated[str, Meta(description="The mesh of the lock.", pattern="^[A-Za-z0-9_-]{1,64}$")]
LockCursor = Annotated[str, Meta(description="Where to continue, as an earlier answer gave it.", max_length=4096)]


class Acquire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for a lock, or for several at once."""

    resource: Resource
    lease_ms: LeaseMs
    mesh: Mesh = DEFAULT_MESH
    request_id: Annotated[
        str | None,
        Meta(
            description="Repeat it unchanged to retry: the relay returns the same grant, not a second one. Printable.",
            extra_json_schema={"minLength": 1, "maxLength": limits.REQUEST_ID_MAX_BYTES},
        ),
    ] = None
    wait_ms: Annotated[
        int,
        Meta(
            description="How long to wait in the queue when the lock is held.",
            extra_json_schema={"minimum": 0, "maximum": limits.LOCK_WAIT_MAX_MS},
        ),
    ] = 0
    session: Session = ""
    mode: Mode = "exclusive"
    tree: Tree = False
    also: Also = ()

    def check(self) -> None:
        """Raise resource_invalid, lease_invalid, request_id_invalid, wait_invalid or session_invalid."""
        validate_resources((self.resource, *self.also), is_tree=self.tree)
        validate_lease_ms(self.lease_ms)
        validate_session(self.session)
        if self.request_id is not None:
            validate_request_id(self.request_id)
        if not 0 <= self.wait_ms <= limits.LOCK_WAIT_MAX_MS:
            raise error("wait_invalid", wait_ms=self.wait_ms, max_ms=limits.LOCK_WAIT_MAX_MS)

    def lease_request(self, owner: str) -> LeaseRequest:
        """Return the request in the form that the rules of leases use."""
        is_shared = self.mode == "shared"
        claims = tuple([Asked(name, owner, self.session, self.tree, is_shared) for name in (self.resource, *self.also)])
        return LeaseRequest(claims, self.lease_ms, self.request_id)


class Renew(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for more time; the lease counts from now."""

    resource: Resource
    token: Token
    lease_ms: LeaseMs
    mesh: Mesh = DEFAULT_MESH
    session: AnySession = None
    also: Also = ()

    def check(self) -> None:
        """Raise resource_invalid, lease_invalid or session_invalid."""
        _check_held(self.resource, self.also, self.session)
        validate_lease_ms(self.lease_ms)


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give a lock back."""

    resource: Resource
    token: Token
    mesh: Mesh = DEFAULT_MESH
    session: AnySession = None
    also: Also = ()

    def check(self) -> None:
        """Raise resource_invalid or session_invalid."""
        _check_held(self.resource, self.also, self.session)


class Break(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End the leases of other nodes under one name; for admins."""

    resource: Resource
    mesh: Mesh = DEFAULT_MESH
    token: Annotated[int | None, Meta(description="Only the lease of this grant; without it all.")] = None
    via: Via | None = None

    def check(self) -> None:
        """Raise resource_invalid."""
        validate_resource(self.resource)


class Inspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the holder of a lock."""

    resource: Resource
    mesh: Mesh = DEFAULT_MESH

    def check(self) -> None:
        """Raise resource_invalid."""
        validate_resource(self.resource)


class Watch(Inspect, frozen=True, forbid_unknown_fields=True):
    """Ask for the holder of a lock, now and after each change."""


class Unwatch(Inspect, frozen=True, forbid_unknown_fields=True):
    """End a watch."""


class ListLocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the locks of a mesh, or of all that one may read."""

    mesh: Annotated[str | None, Meta(description="The mesh; without it all that you may read.")] = None
    cursor: LockCursor | None = None
    limit: Annotated[int, Meta(description="How many at most.", ge=1, le=limits.QUERY_MAX_LIMIT)] = (
        limits.QUERY_MAX_LIMIT
    )

    def check(self) -> None:
        """Do nothing: the types validate everything."""


def _check_held(resource: str, also: tuple[str, ...], session: str | None) -> None:
    validate_resources((resource, *also), is_tree=False)
    if session is not None:
        validate_session(session)


class Freed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lock is free; the token will not be granted again."""

    resource: str
    owner: str
    token: int
    session: str = ""
    also: tuple[str, ...] = ()


class Unwatched(msgspec.Struct, frozen=True):
    """The watch of a lock has ended."""

    resource: str
    mesh: str


Success = LockGrant | Freed | LocksBroken | LockStatus | LockList
LockAnswer = Success | PosthouseError
#: Called once with the answer, or with the failure of the store; with neither if the caller was gone.
OnLockAnswer = Callable[[LockAnswer | None, BaseException | None], None]


class BrokenLeases(NamedTuple):
    """The outcome of a break."""

    rows: tuple[LockRow, ...]


Outcome = Grant | Released | BrokenLeases | Denied | LockView


def lock_answer(outcome: Grant | Released | BrokenLeases | Denied, resource: str) -> LockAnswer:
    """Return the answer of an outcome."""
    if isinstance(outcome, Denied):
        return error(outcome.code, resource=resource, **outcome.fields)
    if isinstance(outcome, BrokenLeases):
        return LocksBroken(resource, tuple([holder_of(row, None) for row in outcome.rows]))
    rows = outcome.rows
    row, also = rows[0], () if len(rows) == 1 else tuple([each.resource for each in rows[1:]])
    if isinstance(outcome, Released):
        return Freed(row.resource, row.owner, row.token, row.session, also)
    return LockGrant(
        row.resource,
        row.owner,
        row.token,
        row.lease_ms,
        outcome.expires_at_ns,
        row.session,
        mode_of(row),
        row.is_tree,
        also,
    )


def mode_of(row: LockRow) -> Literal["exclusive", "shared"]:
    """Return the mode of a lease by its word on the wire."""
    return "shared" if row.is_shared else "exclusive"


def holder_of(row: LockRow, now_ns: int | None, *, is_masked: bool = False) -> LockHolder:
    """Return a lease as the wire shows it: without a time if it is over (None); `is_masked` hides token and session."""
    rest_ms = 0 if now_ns is None else remaining_ms(row, now_ns)
    token, session = (0, "") if is_masked else (row.token, row.session)
    return LockHolder(row.resource, row.owner, token, rest_ms, session, mode_of(row), row.is_tree)


#: leases that a unit reads to decide about one claim; if there are more, one of them conflicts or is expired
OVERLAPS_MAX = 64
#: a place in the list of locks: mesh, resource, owner, session
LockPosition = tuple[str, str, str, str]


class LockEntry(NamedTuple):
    """One lease of one mesh, or its last one."""

    mesh: str
    row: LockRow

    def snapshot(self) -> dict[str, Any]:
        """Return the form of this lease in a snapshot of the journal."""
        return {"mesh": self.mesh, **msgspec.to_builtins(self.row)}


class LockRun(NamedTuple):
    """One run of a relay: boot times are comparable only within one run."""

    run_id: str
    #: the epoch of the store; a different one means that the store was restored since
    epoch: str
    boot_id: str
    boot_ns: int
