"""The queue between the HTTP library's WebSocket parser and the task that reads a connection.

A text frame that comes while the task waits for one, with nothing before it, is handed on at once: no turn of the loop
and no task stand between its bytes and its commands. Everything else takes the library's way, in the order it came. The
library makes its queue itself; where it does so in another way than is known here, all frames take that way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType
from aiohttp._websocket.reader import WebSocketDataQueue


class FrameQueue(WebSocketDataQueue):
    """A queue that first offers text frames to whoever waits for them."""

    #: takes the bytes of a text frame, or says that they have to wait their turn
    take: Callable[[bytes], bool] | None = None

    @classmethod
    def instead_of(cls, queue: WebSocketDataQueue) -> FrameQueue:
        """Return an empty queue with the bounds of another one."""
        return cls(queue._protocol, queue._limit // 2, loop=asyncio.get_running_loop())

    def feed_data(self, data: Any, size: int) -> None:
        if self.take is not None and data.type is WSMsgType.TEXT and not self._buffer and self.take(data.data):
            return
        super().feed_data(data, size)
