"""What clients ask of locks: the arguments of each operation, one struct for HTTP and stream alike.

`check` says what the types cannot: the bytes of a resource, the length of a lease, the form of a request id. If you
change a field: 1. docs/protocol.md, 2. openapi.json, 3. the client that sends it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.model.errors import error
from posthouse.model.lease import validate_lease_ms, validate_request_id, validate_resource
from posthouse.model.limits import INT64_MAX, LOCK_WAIT_MAX_MS, QUERY_MAX_LIMIT
from posthouse.model.node import DEFAULT_MESH

Resource = Annotated[str, Meta(description="Any text of 1 to 512 bytes; it names what is locked.")]
Token = Annotated[int, Meta(description="The fencing token of the grant.", ge=1, le=INT64_MAX)]
LeaseMs = Annotated[int, Meta(description="The length of the lease in milliseconds, 1 s to 10 min.")]
Mesh = Annotated[str, Meta(description="The mesh; tokens are per mesh and resource.", pattern="^[A-Za-z0-9_-]{1,64}$")]

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
        """Everything is said by the types."""
