"""A relay engine without sockets, with short calls for its lock operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from posthouse.keys import NodeKey
from posthouse.model.clock import Clock, FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.lock_api import LockGrant, LockStatus
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.locks.service import Locks, is_never_gone
from posthouse.relay.wire.lock_operations import Acquire, Break, Inspect, LockAnswer, Release, Renew

RELAY = NodeKey(b"r" * 32).node
PATIENCE_S = 20


def node(number: int) -> str:
    """Return a node id."""
    return NodeKey(number.to_bytes(32, "big")).node


class Desk:
    """The locks of a running engine."""

    def __init__(self, core: RelayEngine, clock: FakeClock) -> None:
        self.core = core
        self.clock = clock

    @property
    def locks(self) -> Locks:
        assert isinstance(self.core.locks, Locks)
        return self.core.locks

    def acquire(
        self,
        owner: str,
        resource: str = "r",
        lease_ms: int = 5_000,
        is_gone: Callable[[], bool] = is_never_gone,
        **more: Any,
    ) -> asyncio.Future[LockAnswer]:
        return self.locks.ask(owner, Acquire(resource, lease_ms, **more), is_gone)

    async def granted(self, owner: str, resource: str = "r", **more: Any) -> int:
        """Acquire a lock that must be granted, and return its token."""
        return token_of(await self.acquire(owner, resource, **more))

    async def release(self, owner: str, token: int, resource: str = "r") -> LockAnswer:
        return await self.locks.ask(owner, Release(resource, token))

    async def renew(self, owner: str, token: int, resource: str = "r", lease_ms: int = 5_000) -> LockAnswer:
        return await self.locks.ask(owner, Renew(resource, token, lease_ms))

    async def break_lock(self, admin: str, resource: str = "r", token: int | None = None) -> Any:
        return await self.locks.ask(admin, Break(resource, token=token))

    async def inspect(self, resource: str = "r") -> LockStatus:
        answer = await self.locks.ask(node(99), Inspect(resource))  # an admin, who may see tokens
        assert isinstance(answer, LockStatus), answer
        return answer


def token_of(answer: LockAnswer) -> int:
    """Return the token of a grant."""
    assert isinstance(answer, LockGrant), answer
    return answer.token


def code_of(answer: LockAnswer) -> str:
    """Return the code of a refusal."""
    assert isinstance(answer, PosthouseError), answer
    return answer.code


@asynccontextmanager
async def open_desk(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[Desk]:
    """Run an engine."""
    clock = clock or FakeClock()
    core = await open_core(folder, clock)
    try:
        yield Desk(core, clock)
    finally:
        await core.close()


async def open_core(folder: Path, clock: Clock) -> RelayEngine:
    """Start an engine in a folder."""
    return await RelayEngine.start(
        EngineSettings(folder, RELAY, verifier_threads=1, admins=(node(99),), has_new_key=True), clock
    )
