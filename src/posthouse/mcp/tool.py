"""One MCP tool and one call of it: definition, what its handler may use, progress, idempotency key.

A handler talks to the daemon only. The sender is never an argument: it is the member of that daemon. An idempotency
key is an argument, or comes from `_meta` under our own name or that of a client known to send an id that stays the
same when a call is repeated; the protocol has none. It becomes the client_message_id (request_id of a lock), which
the daemon keeps on disk, so it holds over a restart of any process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from posthouse.client.daemon import AsyncDaemonClient
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.model.message import validate_client_message_id

PROGRESS_EVERY_S = 5.0  # often enough for clients that give up on silence, rare enough to cost nothing
#: seconds that passed, seconds in all, a word about it
Report = Callable[[float, float, str], Awaitable[None]]


def meta_key(meta: Mapping[str, Any] | None) -> str | None:
    """Return the key that `_meta` of a request carries; one that is no valid id is refused, never ignored."""
    for name in META_NAMES:
        value = (meta or {}).get(name)
        if value is not None:
            return validate_client_message_id(value if isinstance(value, str) else str(value))
    return None


@dataclass(frozen=True)
class ToolCall:
    """What a handler is given beside its arguments."""

    tool: str
    daemon: AsyncDaemonClient
    #: tells the caller that the call still waits
    report: Report
    #: idempotency key that the protocol brought, if any
    meta_key: str | None
    #: how long a call may wait
    wait_max_s: int
    progress_every_s: float = PROGRESS_EVERY_S
    clock: Clock = field(default_factory=system_clock)

    def check_wait(self, name: str, seconds: float) -> float:
        """Return a wait as asked for, or refuse one that is longer than a call may take."""
        if seconds > self.wait_max_s:
            raise error("tool_arguments_invalid", tool=self.tool, reason=f"{name} is above {self.wait_max_s}")
        return seconds

    def since_s(self, start_ns: int) -> float:
        """Return the seconds since a boot time."""
        return (self.clock.boot_ns() - start_ns) / SECOND_NS

    @asynccontextmanager
    async def waiting(self, total_s: float, word: str) -> AsyncIterator[None]:
        """Tell progress until the end of the block; a call that is cancelled ends it too."""
        start_ns = self.clock.boot_ns()

        async def tick() -> None:
            while True:
                await anyio.sleep(self.progress_every_s)
                await self.report(min(self.since_s(start_ns), total_s), total_s, word)

        failure: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            try:
                yield
            except Exception as raised:  # noqa: BLE001 - handed on below, outside of the group that would wrap it
                failure = raised
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure


@dataclass(frozen=True)
class ToolSpec:
    """One tool."""

    name: str
    #: every word is paid for at each turn of every agent
    description: str
    arguments: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    run: Callable[[ToolCall, Any], Awaitable[msgspec.Struct]]
    #: changes nothing, not even what counts as read
    is_read_only: bool = False
    #: arguments whose upper bound is how long a call may wait
    bounded_by_wait: tuple[str, ...] = ()


#: in order of preference; the second is the id Claude Code gives each use of a tool
META_NAMES = ("posthouse/idempotencyKey", "claudecode/toolUseId")
