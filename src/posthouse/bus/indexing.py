"""Keeping the index up in the background: a moment after something was written, on a thread of its own turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from posthouse.bus.index import Index
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.bus.session import Session

R = TypeVar("R")
log = get_log(__name__)

LAG_S = 0.25  # one pass then serves many messages


class Indexing:
    """Runs the index of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        directory = session.directory
        self.index = Index(directory.index, directory.root, session.store, session.clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bus index")
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._session.ledger.after.append(self._written.set)
        self._task = self._session.loop.create_task(self._keep(), context=self._session.context.copy())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.run(self.index.close)
        self._thread.shutdown()

    async def run(self, work: Callable[[], R]) -> R:
        """Run a call of the index on its thread."""
        return await self._session.loop.run_in_executor(self._thread, work)

    async def _keep(self) -> None:
        while True:
            await self._written.wait()
            await asyncio.sleep(LAG_S)
            self._written.clear()
            try:
                await self.run(self.index.refresh)
            except PosthouseError as failure:  # busy or full: the next turn tries again
                log.info("index_lags", reason=str(failure))
