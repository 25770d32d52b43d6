"""The way out of one connection: commands that gather while a frame is being sent go out together in the next.

Nothing is delayed on purpose. All commands of one turn of the loop make one frame, and while the socket is full the
next frame grows, up to its bound. What waits here is bounded by those who hand it in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from posthouse.client.stream.commands import join_commands
from posthouse.model.limits import EVENTS_PER_REQUEST, MIB

FRAME_COMMANDS = EVENTS_PER_REQUEST  # every relay takes as many in one list
FRAME_BYTES = 1 * MIB  # a frame of one event may be larger


class Outgoing:
    """Gathers commands and sends them in frames."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        #: frames sent, for statistics
        self.frames = 0

    def put(self, command: bytes) -> None:
        """Take a command; it leaves with the next frame, in the order given."""
        self._waiting.append(command)
        self._wake.set()

    async def run(self) -> None:
        """Send what gathers until cancelled; raises what sending raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._send(join_commands(self._take()))
                self.frames += 1

    def _take(self) -> list[bytes]:
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and len(taken) < FRAME_COMMANDS and size + len(self._waiting[0]) <= FRAME_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        return taken
