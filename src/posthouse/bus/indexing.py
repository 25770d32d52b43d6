"""Keeping the index up in the background: a moment after something was written, on a thread of its own turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from posthouse.bus.index import Index
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.bus.session import Session

log = structlog.get_logger(__name__)

LAG_S = 0.25  # one pass then serves many messages


class Indexing:
    """Runs the index of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        directory = session.directory
        self.index = Index(directory.index, directory.root, session.store, session.clock)
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._session.ledger.after.append(self._written.set)
        self._task = self._session.loop.create_task(self._keep(), context=self._session.context.copy())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self.index.close)

    async def _keep(self) -> None:
        while True:
            await self._written.wait()
            await asyncio.sleep(LAG_S)
            self._written.clear()
            try:
                await asyncio.to_thread(self.index.refresh)
            except PosthouseError as failure:  # busy or full: the next turn tries again
                log.info("index_lags", reason=str(failure))
