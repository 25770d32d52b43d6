"""Routes for reserved paths: /v1/reservations (reserve, list, release).

A request acts for its agent; without one, for a person. Paths are absolute; the daemon resolves links, so that two
names of one file are one path.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from posthouse.daemon.agents.repo_locks import lock_name
from posthouse.daemon.agents.reservations import (
    FOR_MAX_S,
    NOTE_MAX_CHARS,
    PATHS_MAX,
    conflict_error,
    find_conflict,
    real_path,
)
from posthouse.daemon.context import LocalCall
from posthouse.daemon.request_fields import AbsolutePath
from posthouse.daemon.send import Via
from posthouse.http.response import HttpResponse, json_response

Paths = Annotated[list[AbsolutePath], msgspec.Meta(min_length=1, max_length=PATHS_MAX)]


class ReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Paths to reserve, all or none."""

    #: absolute paths of files or directories; a directory includes everything below it
    paths: Paths
    #: how long, in seconds
    for_s: Annotated[float, msgspec.Meta(gt=0, le=FOR_MAX_S)] = 1_800
    #: shown to agents that are refused
    note: Annotated[str, msgspec.Meta(max_length=NOTE_MAX_CHARS)] = ""
    mode: Literal["exclusive", "shared"] = "exclusive"
    #: True: also lock the paths of the repository at the relay, for agents on other hosts
    repo: bool = False


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Paths to release."""

    #: absent: everything that the agent has reserved
    paths: Paths | None = None
    #: True: also what other agents have reserved
    force: bool = False
    #: program through which a person acts, for the journal
    via: Via | None = None


class ReservationsQuery(msgspec.Struct):
    """Which reservations to list."""

    #: only those that keep the agent of the request from working on this absolute path
    path: AbsolutePath | None = None


async def reserve_paths(call: LocalCall) -> HttpResponse:
    """Reserve paths, all or none; refused with the holder if another agent has one."""
    body, context, agent = await call.body(ReserveBody), call.context, call.agent
    paths = await asyncio.to_thread(_real_paths, body.paths)
    is_shared = body.mode == "shared"
    for path in paths:  # before calling the relay
        held = find_conflict(path, agent, is_shared=is_shared, reservations=context.reservations.active)
        if held is not None:
            raise conflict_error(path, held, context.clock)
    locks: dict[str, str] = {}
    if body.repo:
        locks = await asyncio.to_thread(lambda: {path: lock_name(path) for path in paths})
        await context.repo_locks.acquire(agent, list(locks.values()), is_shared=is_shared)
    try:
        rows = await context.reservations.reserve(agent, paths, body.for_s, body.note, is_shared=is_shared, locks=locks)
    finally:
        context.repo_locks.release_unused()
    return json_response({"id": rows[0].id, "items": [row.to_api(context.clock) for row in rows]}, 201)


async def list_reservations(call: LocalCall) -> HttpResponse:
    """Return the active reservations; with a path, only those that keep this agent from it."""
    arguments, context, agent = call.arguments(ReservationsQuery), call.context, call.agent
    rows = context.reservations.active
    if arguments.path is not None:
        found = context.reservations.conflict(await asyncio.to_thread(real_path, arguments.path), agent)
        rows = [] if found is None else [found]
    return json_response({"items": [row.to_api(context.clock) for row in rows]})


async def release_paths(call: LocalCall) -> HttpResponse:
    """Release paths of the agent, or all of them."""
    body, context = await call.body(ReleaseBody), call.context
    paths = None if body.paths is None else await asyncio.to_thread(_real_paths, body.paths)
    rows = await context.reservations.release(call.agent, paths, is_forced=body.force, via=body.via)
    return json_response({"items": [row.to_api(context.clock) for row in rows]})


def _real_paths(paths: list[str]) -> list[str]:
    return list(dict.fromkeys(real_path(path) for path in paths))
