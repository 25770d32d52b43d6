"""What open mailboxes owe to the store, written without anybody waiting for it, in order per node.

What a store without room refuses is kept and tried again; more than a bound of it is let go, oldest first, which costs
a reader at most a count of attempts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from posthouse.model.errors import PosthouseError, Transient
from posthouse.relay.store.interface import RelayStore, Unit

log = structlog.get_logger(__name__)

Name = tuple[str, str]
Work = Callable[[Unit], Any]
_KEPT = 10_000  # works that wait for a store without room


class Owed:
    """Writes that are on their way or wait for their retry."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._running: dict[Name, set[asyncio.Future[Any]]] = {}
        self._refused: deque[tuple[Name, Work, Callable[[Any], None] | None]] = deque(maxlen=_KEPT)

    def write(self, name: Name, work: Work, then: Callable[[Any], None] | None = None) -> None:
        """Hand work to the writer; `then` is called with its result after the commit."""
        try:
            future = self._store.submit(work)
        except Transient:
            self._refused.append((name, work, then))
            return
        except PosthouseError as failure:  # the store is closed or failed: nothing can be owed to it any more
            log.warning("delivery_not_noted", reason=str(failure))
            return
        self._running.setdefault(name, set()).add(future)
        future.add_done_callback(partial(self._written, name, work, then))

    async def settled(self, name: Name) -> None:
        """Wait until what was handed over for a name is committed, or refused."""
        while running := self._running.get(name):
            await asyncio.wait(list(running))

    async def drain(self) -> None:
        """Wait for everything that runs."""
        while self._running:
            await asyncio.wait([future for running in self._running.values() for future in running])

    def retry(self) -> None:
        """Hand over again what was refused."""
        refused = list(self._refused)
        self._refused.clear()
        for name, work, then in refused:
            self.write(name, work, then)

    def _written(self, name: Name, work: Work, then: Callable[[Any], None] | None, future: asyncio.Future[Any]) -> None:
        running = self._running[name]
        running.discard(future)
        if not running:
            del self._running[name]
        failure = future.exception()
        if failure is None:
            if then is not None:
                then(future.result())
        elif isinstance(failure, Transient):
            self._refused.append((name, work, then))
        else:
            log.error("delivery_not_noted", reason=repr(failure), exc_info=failure)
