"""An event loop whose clock stands still while there is work, and jumps to the next timer when there is none.

Ten idle minutes pass in a moment, and a pong always comes at the very instant of its ping.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

_GRACE_S = 0.0005  # of real time without any event before the clock jumps: sockets of one process answer at once


class _JumpingSelector(selectors.DefaultSelector):
    """Reports events at once; without any it lets the clock jump instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.may_jump = False

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if not self.may_jump:
            return super().select(timeout)
        found = super().select(_GRACE_S)
        if not found:
            self.now_s += timeout
        return found


class IdleTimeLoop(asyncio.SelectorEventLoop):
    """The loop; its clock moves only inside `pass_time`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    async def pass_time(self, seconds: float) -> None:
        """Let this much time of the loop pass, timer by timer."""
        self._jumping.may_jump = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._jumping.may_jump = False
