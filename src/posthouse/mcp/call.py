"""One call of a tool: what its handler may use, and the progress that a call which waits tells meanwhile.

A handler speaks to the daemon and to nothing else. Who sends is never an argument: it is the member of that daemon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from posthouse.client.daemon import AsyncDaemonClient
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS

PROGRESS_EVERY_S = 5.0  # often enough for clients that give up on silence, rare enough to cost nothing
#: seconds that passed, seconds in all, a word about it
Report = Callable[[float, float, str], Awaitable[None]]


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
