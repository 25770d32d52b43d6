"""Threads for sync handlers: as many as there are blocked handlers, reused when idle.

A bounded pool would let a few hanging handlers stop every other endpoint. The number of threads is bounded by the
endpoints served, because an endpoint works on one message at a time. Threads are daemons: a handler that never
returns must not keep the process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]
_KEPT_IDLE = 8


class HandlerThreads:
    """Runs each piece of work on a thread of its own, at once."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Work | None]] = []
        self._gate = threading.Lock()
        self._is_closed = False

    def run(self, work: Work) -> None:
        """Run `work` on an idle thread or a new one; it must not raise."""
        with self._gate:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="bus handler", daemon=True).start()
        inbox.put(work)

    def close(self) -> None:
        """End idle threads; busy ones end after their work."""
        with self._gate:
            self._is_closed = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()

    def _serve(self, inbox: queue.SimpleQueue[Work | None]) -> None:
        while (work := inbox.get()) is not None:
            work()
            with self._gate:
                if self._is_closed or len(self._idle) >= _KEPT_IDLE:
                    return
                self._idle.append(inbox)
