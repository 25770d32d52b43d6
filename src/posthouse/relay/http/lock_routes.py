"""/v1/locks: leases with fencing tokens.

A resource is one path segment, percent-encoded, or given as ?resource=, which any name can be. An acquire may wait: it
counts neither as a running request nor against the time of one, and it is given up when its caller goes away.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.node import DEFAULT_MESH
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import LIMIT
from posthouse.relay.locks.service import LockRequest, is_never_gone
from posthouse.relay.wire.lock_operations import (
    Acquire,
    Freed,
    Granted,
    Inspect,
    ListLocks,
    LockCursor,
    LockPage,
    LockState,
    Mesh,
    Release,
    Renew,
)


class LockQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The mesh of a lock."""

    mesh: Mesh | None = None


class LocksQuery(LockQuery, forbid_unknown_fields=True):
    """One lock by its name, or part of a list."""

    resource: Annotated[str | None, Meta(description="The lock to inspect; without it, list locks.")] = None
    cursor: LockCursor | None = None
    limit: Annotated[int, LIMIT] | None = None


async def acquire(call: RelayCall) -> HttpResponse:
    """Acquire a lock, waiting for it if asked to."""
    node = call.node
    return await _ask(call, node, await call.body(Acquire))


async def renew(call: RelayCall) -> HttpResponse:
    """Renew a lease."""
    node = call.node
    return await _ask(call, node, await call.body(Renew))


async def release(call: RelayCall) -> HttpResponse:
    """Release a lock."""
    node = call.node
    return await _ask(call, node, await call.body(Release))


async def inspect(call: RelayCall) -> HttpResponse:
    """Tell who holds a lock."""
    mesh = call.arguments(LockQuery).mesh
    return await _ask(call, call.node, Inspect(call.params["resource"], mesh or DEFAULT_MESH))


async def show(call: RelayCall) -> HttpResponse:
    """Tell who holds the lock given as ?resource=, or list locks."""
    given = call.arguments(LocksQuery)
    if given.resource is not None:
        return await _ask(call, call.node, Inspect(given.resource, given.mesh or DEFAULT_MESH))
    wanted = ListLocks(given.mesh, given.cursor, given.limit or QUERY_MAX_LIMIT)
    return json_response(await call.context.engine.locks.list(call.node, wanted))


async def _ask(call: RelayCall, node: str, wanted: LockRequest) -> HttpResponse:
    wanted.check()
    request = call.request

    def is_gone() -> bool:
        transport = request.transport
        return transport is None or transport.is_closing()

    is_waiting = isinstance(wanted, Acquire) and wanted.wait_ms > 0
    answer = await call.context.engine.locks.ask(node, wanted, is_gone if is_waiting else is_never_gone)
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
        responses={200: Granted},
        may_wait=True,
    ),
    Route("POST", "/v1/locks/renew", renew, "Renew a lease", bodies=(Renew,), responses={200: Granted}),
    Route("POST", "/v1/locks/release", release, "Release a lock", bodies=(Release,), responses={200: Freed}),
    Route("GET", "/v1/locks/{resource}", inspect, "Inspect a lock", query=LockQuery, responses={200: LockState}),
    Route(
        "GET",
        "/v1/locks",
        show,
        "List locks, or inspect the one given as ?resource=",
        query=LocksQuery,
        responses={200: (LockPage, LockState)},
    ),
)
