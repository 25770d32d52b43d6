"""/v1/locks/*: locks of the relay for local programs; owner is the daemon's node."""

from __future__ import annotations

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.daemon.ipc.call import Call


class _Acquire(msgspec.Struct, forbid_unknown_fields=True):
    resource: str
    lease_ms: int
    mesh: str | None = None
    request_id: str | None = None
    wait_ms: int = 0


class _Renew(msgspec.Struct, forbid_unknown_fields=True):
    resource: str
    token: int
    lease_ms: int
    mesh: str | None = None


class _Release(msgspec.Struct, forbid_unknown_fields=True):
    resource: str
    token: int
    mesh: str | None = None


async def acquire(call: Call) -> Answer:
    """Acquire a lock."""
    given = await call.body(_Acquire)
    locks = call.daemon.uplink.client.locks
    asked = locks.acquire(
        given.resource, lease_ms=given.lease_ms, wait_ms=given.wait_ms, request_id=given.request_id, mesh=given.mesh
    )
    if not given.wait_ms:
        return json_answer(await asked)
    async with call.service.sleep():
        grant = await asked
    return json_answer(grant)


async def renew(call: Call) -> Answer:
    """Renew a lease."""
    given = await call.body(_Renew)
    locks = call.daemon.uplink.client.locks
    return json_answer(await locks.renew(given.resource, given.token, lease_ms=given.lease_ms, mesh=given.mesh))


async def release(call: Call) -> Answer:
    """Give a lock back."""
    given = await call.body(_Release)
    await call.daemon.uplink.client.locks.release(given.resource, given.token, mesh=given.mesh)
    return json_answer({"resource": given.resource, "released": True})
