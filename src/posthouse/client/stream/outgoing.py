"""The way out of one connection: commands that gather while a frame is being sent go out together in the next.

Nothing is delayed on purpose. All commands of one turn of the loop make one frame, and while the socket is full the
next frame grows, up to its bound. A list that was handed in as one is never cut in two. What waits here is bounded
by those who hand it in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from posthouse.model.limits import EVENTS_PER_REQUEST, MIB

FRAME_COMMANDS = EVENTS_PER_REQUEST  # every relay takes as many in one list
FRAME_BYTES = 1 * MIB  # a frame of one event, or of one list, may be larger


class _Part(NamedTuple):
    #: commands joined by commas
    text: bytes
    commands: int


class Outgoing:
    """Gathers commands and sends them in frames."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: deque[_Part] = deque()
        self._wake = asyncio.Event()
        #: frames sent, for statistics
        self.frames = 0

    def put(self, command: bytes) -> None:
        """Take a command; it leaves with the next frame, in the order given."""
        self._add(_Part(command, 1))

    def put_list(self, commands: Sequence[bytes]) -> None:
        """Take commands that must stay together in one frame, one after the other."""
        self._add(_Part(b",".join(commands), len(commands)))

    async def run(self) -> None:
        """Send what gathers until cancelled; raises what sending raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._send(_frame(self._take()))
                self.frames += 1

    def _add(self, part: _Part) -> None:
        self._waiting.append(part)
        self._wake.set()

    def _take(self) -> list[_Part]:
        taken = [self._waiting.popleft()]
        count, size = taken[0].commands, len(taken[0].text)
        while self._waiting:
            text, more = self._waiting[0]
            count, size = count + more, size + len(text)
            if count > FRAME_COMMANDS or size > FRAME_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken


def _frame(parts: Sequence[_Part]) -> bytes:
    """Return the frame of several commands; a single one stands alone."""
    if len(parts) == 1 and parts[0].commands == 1:
        return parts[0].text
    return b"[" + b",".join(part.text for part in parts) + b"]"
