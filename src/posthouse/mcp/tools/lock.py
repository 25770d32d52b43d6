"""`lock`: acquire, renew and release a lock of the relay for this daemon's node.

A lease ends by itself; only its fencing token makes a late write safe. `valid_for_s` counts from before the request
was sent, so it is never longer than what the relay grants.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from posthouse.mcp.tool import ToolCall, ToolSpec
from posthouse.model.api import LockGrant
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import LEASE_MAX_MS
from posthouse.model.message import validate_client_message_id

DEFAULT_LEASE_S = 60
_MS = 1000


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["acquire", "renew", "release"]
    resource: str
    #: token of the grant, for renew and release
    token: int | UnsetType = UNSET
    lease_s: Annotated[int, Meta(ge=1, le=LEASE_MAX_MS // _MS)] | UnsetType = UNSET
    #: how long to wait for the lock
    wait_s: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class Answer(msgspec.Struct):
    resource: str
    held: bool
    #: send it with every protected write
    token: int
    valid_for_s: float


async def run(call: ToolCall, arguments: Arguments) -> Answer:
    lease_s = DEFAULT_LEASE_S if arguments.lease_s is UNSET else arguments.lease_s
    if arguments.action == "acquire":
        return await _acquire(call, arguments, lease_s)
    if arguments.token is UNSET:
        raise call.invalid(f"{arguments.action} needs the token of the grant")
    if arguments.action == "release":
        await call.daemon.lock_release(arguments.resource, arguments.token)
        return Answer(arguments.resource, held=False, token=arguments.token, valid_for_s=0)
    start_ns = call.clock.boot_ns()
    return _held(
        call, await call.daemon.lock_renew(arguments.resource, arguments.token, lease_ms=lease_s * _MS), start_ns
    )


async def _acquire(call: ToolCall, arguments: Arguments, lease_s: int) -> Answer:
    if arguments.token is not UNSET:
        raise call.invalid("acquire takes no token, it gives one")
    wait_s = 0.0 if arguments.wait_s is UNSET else call.check_wait("wait_s", arguments.wait_s)
    key = call.key if arguments.idempotency_key is UNSET else validate_client_message_id(arguments.idempotency_key)
    start_ns = call.clock.boot_ns()
    async with call.with_progress(wait_s, "the lock is held"):
        grant = await call.daemon.lock_acquire(
            arguments.resource, lease_ms=lease_s * _MS, wait_ms=round(wait_s * _MS) or None, request_id=key
        )
    # the lease counts from before the request, so a long wait would leave little of it or nothing
    if call.since_s(start_ns) > lease_s / 2:
        return await _renew_after_wait(call, grant, start_ns)
    return _held(call, grant, start_ns)


async def _renew_after_wait(call: ToolCall, grant: LockGrant, start_ns: int) -> Answer:
    renewed_ns = call.clock.boot_ns()
    try:
        return _held(
            call, await call.daemon.lock_renew(grant.resource, grant.token, lease_ms=grant.lease_ms), renewed_ns
        )
    except PosthouseError:
        # the caller must get the token in any case, with the time that the grant itself leaves
        return _held(call, grant, start_ns)


def _held(call: ToolCall, grant: LockGrant, start_ns: int) -> Answer:
    left_s = max(0.0, grant.lease_ms / _MS - call.since_s(start_ns))
    return Answer(grant.resource, held=True, token=grant.token, valid_for_s=round(left_s, 1))


LOCK = ToolSpec(
    "lock",
    "Hold a lock for lease_s; renew within valid_for_s. Send token with each write it protects.",
    Arguments,
    Answer,
    run,
    has_output_schema=True,
    bounded_by_wait=("wait_s",),
)
