"""The tools `lock` and `reserve`: locks of the relay, and reservations of files for one agent of this host.

A lease ends by itself; only its fencing token makes a late write safe. `valid_for_s` counts from before the request was
sent, so it is never longer than the relay's grant. A reservation ends after its time, with a release, or some minutes
after the agent's program has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from posthouse.client.daemon import Reservation
from posthouse.mcp.tool import ToolCall, ToolSpec
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import LEASE_MAX_MS
from posthouse.model.lock_api import LockGrant

DEFAULT_LEASE_S = 60
_MS = 1000


class LockArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["acquire", "renew", "release"]
    resource: str
    #: token of the grant, for renew and release
    token: int | UnsetType = UNSET
    lease_s: Annotated[int, Meta(ge=1, le=LEASE_MAX_MS // _MS)] | UnsetType = UNSET
    #: how long to wait for the lock
    wait_s: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


class LockAnswer(msgspec.Struct):
    resource: str
    held: bool
    #: send it with every protected write
    token: int
    valid_for_s: float


async def run_lock(call: ToolCall, arguments: LockArguments) -> LockAnswer:
    lease_s = DEFAULT_LEASE_S if arguments.lease_s is UNSET else arguments.lease_s
    if arguments.action == "acquire":
        return await _acquire(call, arguments, lease_s)
    if arguments.token is UNSET:
        raise call.invalid(f"{arguments.action} needs the token of the grant")
    if arguments.action == "release":
        await call.daemon.lock_release(arguments.resource, arguments.token)
        return LockAnswer(arguments.resource, held=False, token=arguments.token, valid_for_s=0)
    start_ns = call.clock.boot_ns()
    return _held(
        call, await call.daemon.lock_renew(arguments.resource, arguments.token, lease_ms=lease_s * _MS), start_ns
    )


async def _acquire(call: ToolCall, arguments: LockArguments, lease_s: int) -> LockAnswer:
    if arguments.token is not UNSET:
        raise call.invalid("acquire takes no token; it returns one")
    wait_s = 0.0 if arguments.wait_s is UNSET else call.check_wait("wait_s", arguments.wait_s)
    start_ns = call.clock.boot_ns()
    async with call.with_progress(wait_s, "the lock is held"):
        grant = await call.daemon.lock_acquire(
            arguments.resource, lease_ms=lease_s * _MS, wait_ms=round(wait_s * _MS) or None, request_id=call.key
        )
    # valid_for_s counts from before the request, so after a long wait little or nothing of it would be left
    if call.since_s(start_ns) > lease_s / 2:
        return await _renew_after_wait(call, grant, start_ns)
    return _held(call, grant, start_ns)


async def _renew_after_wait(call: ToolCall, grant: LockGrant, start_ns: int) -> LockAnswer:
    renewed_ns = call.clock.boot_ns()
    try:
        return _held(
            call, await call.daemon.lock_renew(grant.resource, grant.token, lease_ms=grant.lease_ms), renewed_ns
        )
    except PosthouseError:
        # the caller must get the token in any case, with the time that is left of the grant itself
        return _held(call, grant, start_ns)


def _held(call: ToolCall, grant: LockGrant, start_ns: int) -> LockAnswer:
    left_s = max(0.0, grant.lease_ms / _MS - call.since_s(start_ns))
    return LockAnswer(grant.resource, held=True, token=grant.token, valid_for_s=round(left_s, 1))


LOCK = ToolSpec(
    "lock",
    "Hold a lock; renew within valid_for_s. Send token with each write it protects.",
    LockArguments,
    LockAnswer,
    run_lock,
    has_output_schema=True,
    bounded_by_wait=("wait_s",),
)


DEFAULT_RESERVE_MIN = 30


class ReserveArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["reserve", "release", "list"]
    #: files and directories; relative ones are below the directory of the agent's program
    paths: list[str] | UnsetType = UNSET
    minutes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    note: str | UnsetType = UNSET


class Reserved(msgspec.Struct):
    path: str
    by: str
    left_s: int
    note: str


class ReserveAnswer(msgspec.Struct):
    reserved: list[Reserved]


async def run_reserve(call: ToolCall, arguments: ReserveArguments) -> ReserveAnswer:
    paths = [] if arguments.paths is UNSET else [_absolute(call, path) for path in arguments.paths]
    if arguments.action == "reserve":
        if not paths:
            raise call.invalid("reserve needs paths")
        minutes = DEFAULT_RESERVE_MIN if arguments.minutes is UNSET else arguments.minutes
        note = "" if arguments.note is UNSET else arguments.note
        return _show(await call.daemon.reserve(*paths, for_s=minutes * 60, note=note))
    if arguments.action == "release":
        await call.daemon.release(*paths)
    held = await call.daemon.reservations()
    return _show([each for each in held if arguments.action == "list" or each.agent == call.agent])


def _absolute(call: ToolCall, path: str) -> str:
    if not path.startswith("/") and call.project is None:
        raise call.invalid(f"{path!r} is not an absolute path")
    return str(Path(call.project or "/") / path)


def _show(reservations: Iterable[Reservation]) -> ReserveAnswer:
    return ReserveAnswer(
        [Reserved(each.path, each.agent or "a person", each.left_s, each.note) for each in reservations]
    )


RESERVE = ToolSpec(
    "reserve",
    "Reserve files before you edit them.",
    ReserveArguments,
    ReserveAnswer,
    run_reserve,
    has_output_schema=True,
)
