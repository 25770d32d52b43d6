"""/v1/locks: leases with fencing tokens.

A resource is one percent-encoded path segment, or ?resource= for any name. An acquire may wait: it then takes no
request slot, has no time limit, and ends when its client disconnects.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.lock_api import LockGrant, LockList, LocksBroken, LockStatus
from posthouse.model.node import DEFAULT_MESH
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import LIMIT
from posthouse.relay.locks.service import is_never_gone
from posthouse.relay.locks.waiters import LockRequest
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Break,
    Freed,
    Inspect,
    ListLocks,
    LockCursor,
    Mesh,
    Release,
    Renew,
    Resource,
)


class LockQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The mesh of a lock."""

    mesh: Mesh | None = None


class LocksQuery(LockQuery, forbid_unknown_fields=True):
    """One lock by its name; without it, part of the list."""

    resource: Resource | None = None
    cursor: LockCursor | None = None
    limit: Annotated[int, LIMIT] | None = None


async def acquire(call: RelayCall) -> HttpResponse:
    """Acquire a lock; wait for it if asked to."""
    node = call.node
    return await _run(call, node, await call.body(Acquire))


async def renew(call: RelayCall) -> HttpResponse:
    """Renew a lease."""
    node = call.node
    return await _run(call, node, await call.body(Renew))


async def release(call: RelayCall) -> HttpResponse:
    """Release a lock."""
    node = call.node
    return await _run(call, node, await call.body(Release))


async def break_lock(call: RelayCall) -> HttpResponse:
    """Break a lock; for admins of its mesh."""
    node = call.node
    return await _run(call, node, await call.body(Break))


async def inspect(call: RelayCall) -> HttpResponse:
    """Return the holder of a lock."""
    mesh = call.arguments(LockQuery).mesh
    return await _run(call, call.node, Inspect(call.params["resource"], mesh or DEFAULT_MESH))


async def show(call: RelayCall) -> HttpResponse:
    """Return the holder of the lock given as ?resource=, or list locks."""
    arguments = call.arguments(LocksQuery)
    if arguments.resource is not None:
        return await _run(call, call.node, Inspect(arguments.resource, arguments.mesh or DEFAULT_MESH))
    listing = ListLocks(arguments.mesh, arguments.cursor, arguments.limit or QUERY_MAX_LIMIT)
    return json_response(await call.context.engine.locks.list(call.node, listing))


async def _run(call: RelayCall, node: str, operation: LockRequest) -> HttpResponse:
    operation.check()
    request = call.request

    def is_gone() -> bool:
        transport = request.transport
        return transport is None or transport.is_closing()

    is_waiting = isinstance(operation, Acquire) and operation.wait_ms > 0
    answer = await call.context.engine.locks.ask(node, operation, is_gone if is_waiting else is_never_gone)
    if isinstance(answer, PosthouseError):
        raise answer
    return json_response(answer)


LOCK_ROUTES = (
    Route(
        "POST",
        "/v1/locks/acquire",
        acquire,
        "Acquire a lock",
        bodies=(Acquire,),
        responses={200: LockGrant},
        may_wait=True,
    ),
    Route("POST", "/v1/locks/renew", renew, "Renew a lease", bodies=(Renew,), responses={200: LockGrant}),
    Route("POST", "/v1/locks/release", release, "Release a lock", bodies=(Release,), responses={200: Freed}),
    Route("POST", "/v1/locks/break", break_lock, "Break a lock", bodies=(Break,), responses={200: LocksBroken}),
    Route("GET", "/v1/locks/{resource}", inspect, "Inspect a lock", query=LockQuery, responses={200: LockStatus}),
    Route(
        "GET",
        "/v1/locks",
        show,
        "List locks, or inspect the one given as ?resource=",
        query=LocksQuery,
        responses={200: (LockList, LockStatus)},
    ),
)
