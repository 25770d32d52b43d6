"""One MCP tool and one call of it: definition, what its handler may use, progress, idempotency key.

A handler uses the daemon only. The sender is never an argument: it is the member of that daemon. The protocol has no
idempotency key, so it is an argument, or comes from `_meta`: under our own name, or under that of a client known to
repeat the same id when it repeats a call. It becomes the client_message_id (request_id of a lock), which the daemon
stores on disk, so it survives a restart of any process.
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
#: callback(seconds passed, seconds in all, message)
ReportProgress = Callable[[float, float, str], Awaitable[None]]
#: in order of preference; the second is the id that Claude Code gives each use of a tool
META_NAMES = ("posthouse/idempotencyKey", "claudecode/toolUseId")


def meta_key(meta: Mapping[str, Any] | None) -> str | None:
    """Return the idempotency key in `_meta` of a request; an invalid one is refused, never ignored."""
    for name in META_NAMES:
        value = (meta or {}).get(name)
        if value is not None:
            return validate_client_message_id(value if isinstance(value, str) else str(value))
    return None


@dataclass(frozen=True)
class ToolCall:
    """What a handler gets beside its arguments."""

    tool: str
    daemon: AsyncDaemonClient
    #: reports to the client that the call still waits
    report_progress: ReportProgress
    #: idempotency key from `_meta`, if any
    meta_key: str | None
    #: longest wait of a call
    wait_max_s: int
    progress_every_s: float = PROGRESS_EVERY_S
    clock: Clock = field(default_factory=system_clock)

    def check_wait(self, name: str, seconds: float) -> float:
        """Return a wait, or refuse one that is longer than a call may take."""
        if seconds > self.wait_max_s:
            raise error("tool_arguments_invalid", tool=self.tool, reason=f"{name} is above {self.wait_max_s}")
        return seconds

    def since_s(self, start_ns: int) -> float:
        """Return the seconds since a boot time."""
        return (self.clock.boot_ns() - start_ns) / SECOND_NS

    @asynccontextmanager
    async def with_progress(self, total_s: float, message: str) -> AsyncIterator[None]:
        """Report progress until the block ends or the call is cancelled."""
        start_ns = self.clock.boot_ns()

        async def report() -> None:
            while True:
                await anyio.sleep(self.progress_every_s)
                await self.report_progress(min(self.since_s(start_ns), total_s), total_s, message)

        failure: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(report)
            try:
                yield
            except Exception as raised:  # noqa: BLE001 - raised below, outside of the group that would wrap it
                failure = raised
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure


@dataclass(frozen=True)
class ToolSpec:
    """One tool."""

    name: str
    #: every agent pays for each word at every turn
    description: str
    arguments: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    run: Callable[[ToolCall, Any], Awaitable[msgspec.Struct]]
    #: True: the tool changes nothing, not even which messages are unread
    is_read_only: bool = False
    #: arguments whose maximum is the longest wait of a call
    bounded_by_wait: tuple[str, ...] = ()
