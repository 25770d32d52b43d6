"""The time limit of what an endpoint works on: one timer, set again only when it rings.

Nearly all work ends long before its time is over, so a timer for each message would be made only to be thrown away. A
new limit is just noted; when the timer rings it looks at what is noted and waits for the rest. Limits of one deadline
are all of the same length, so none can be over before the timer rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context


class Deadline:
    """Calls what was last set when its time is over, unless it was cleared before."""

    __slots__ = ("_act", "_at", "_context", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._at = 0.0
        self._act: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, limit_s: float, act: Callable[[], None]) -> None:
        """Call `act` in `limit_s` seconds instead of what was set before."""
        self._at = self._loop.time() + limit_s
        self._act = act
        if self._timer is None:
            self._wait()

    def clear(self) -> None:
        """Call nothing; the timer rings once more for what may be set by then."""
        self._act = None

    def close(self) -> None:
        """Let go of the timer and of whom it would call."""
        self._act = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._at, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        if self._act is None:
            return
        if self._loop.time() < self._at:
            self._wait()
            return
        act, self._act = self._act, None
        act()
