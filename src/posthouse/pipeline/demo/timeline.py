"""A made-up week, played in seconds: actions in the order of their times, on a clock that jumps to each of them.

The clock moves only between two actions, after everything the last one led to has settled; so whatever the product
writes carries the time at which it would have happened.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable

from posthouse.model.clock import FakeClock
from posthouse.model.limits import SECOND_NS

#: answers False when there was nothing to do
Action = Callable[[], Awaitable[bool | None]]
Settle = Callable[[], Awaitable[None]]


class Timeline:
    """What is still to happen."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._start_ns = clock.wall_ns()
        self._numbers = itertools.count()
        self._actions: list[tuple[int, int, Action]] = []

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return (self.clock.wall_ns() - self._start_ns) / SECOND_NS

    def at(self, seconds: float, action: Action) -> None:
        """Plan an action for a time since the beginning."""
        at_ns = self._start_ns + round(seconds * SECOND_NS)
        heapq.heappush(self._actions, (at_ns, next(self._numbers), action))

    def after(self, seconds: float, action: Action) -> None:
        """Plan an action for so long from now."""
        self.at(self.now_s + seconds, action)

    async def play(self, settle: Settle) -> None:
        """Do everything that is planned, and what that leads to."""
        while self._actions:
            at_ns, _, action = heapq.heappop(self._actions)
            if at_ns > self.clock.wall_ns():
                self.clock.advance((at_ns - self.clock.wall_ns()) / SECOND_NS)
            if await action() is not False:
                await settle()
