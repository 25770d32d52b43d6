"""Single operations on locks: acquire, renew, release, inspect, list.

Whoever wants a lock held for a piece of work uses `Client.lock`, which renews and notices the end. These calls are for
those who keep token and deadline themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from posthouse.client.locks.commands import LockCommands
from posthouse.client.locks.values import LockGrant, LockList, LockStatus, read_value
from posthouse.model.clock import Clock
from posthouse.model.limits import LOCK_WAIT_MAX_MS, MILLISECOND_NS


class LockCalls:
    """The operations on the locks of one relay."""

    def __init__(
        self, commands: LockCommands, clock: Clock, timeout_s: float, mesh: str, connect: Callable[[], Awaitable[None]]
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._timeout_s = timeout_s
        self._mesh = mesh
        self._connect = connect

    async def acquire(
        self,
        resource: str,
        *,
        lease_ms: int,
        wait_ms: int = 0,
        request_id: str | None = None,
        mesh: str | None = None,
    ) -> LockGrant:
        """Acquire a lock, waiting up to `wait_ms`; raises held and the other refusals.

        The same `request_id` makes a retry safe: the grant is told again, not made twice.
        """
        end_ns = self._clock.boot_ns() + wait_ms * MILLISECOND_NS
        wanted: dict[str, Any] = {"resource": resource, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        if request_id is not None:
            wanted["request_id"] = request_id

        def arguments() -> Mapping[str, Any]:
            left_ms = max(0, (end_ns - self._clock.boot_ns()) // MILLISECOND_NS)
            return wanted | {"wait_ms": min(left_ms, LOCK_WAIT_MAX_MS)} if wait_ms else wanted

        await self._connect()
        value = await self._commands.ask("acquire", arguments, self._timeout_s + wait_ms / 1000)
        return read_value(value, LockGrant, self._commands.origin)

    async def renew(
        self, resource: str, token: int, *, lease_ms: int, mesh: str | None = None, timeout_s: float | None = None
    ) -> LockGrant:
        """Renew a lease that is active; it counts from now."""
        wanted = {"resource": resource, "token": token, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        return read_value(await self._ask("renew", wanted, timeout_s), LockGrant, self._commands.origin)

    async def release(
        self, resource: str, token: int, *, mesh: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Give a lock back."""
        await self._ask("release", {"resource": resource, "token": token, "mesh": mesh or self._mesh}, timeout_s)

    def give_back(self, resource: str, token: int, *, mesh: str | None = None) -> None:
        """Release a lock without waiting for the answer; the lease ends by itself if this does not get through."""
        self._commands.give_back(resource, mesh or self._mesh, token)

    async def inspect(self, resource: str, *, mesh: str | None = None) -> LockStatus:
        """Tell who holds a lock."""
        value = await self._ask("inspect", {"resource": resource, "mesh": mesh or self._mesh}, None)
        return read_value(value, LockStatus, self._commands.origin)

    async def list(self, *, mesh: str | None = None, limit: int | None = None, cursor: str | None = None) -> LockList:
        """Return part of the locks of a mesh, or of all that this node may read."""
        given = {"mesh": mesh, "limit": limit, "cursor": cursor}
        wanted = {name: value for name, value in given.items() if value is not None}
        return read_value(await self._ask("list", wanted, None), LockList, self._commands.origin)

    async def _ask(self, op: str, wanted: Mapping[str, Any], timeout_s: float | None) -> Any:
        await self._connect()
        return await self._commands.ask(op, lambda: wanted, self._timeout_s if timeout_s is None else timeout_s)
