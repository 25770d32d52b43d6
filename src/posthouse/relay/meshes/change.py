"""Changing meshes: one change at a time, judged, committed with its records, then taken over into memory.

A caller that goes away does not stop a change half-way: once it was handed to the writer, memory follows the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.store.interface import RelayStore, Unit

R = TypeVar("R")


class Changes:
    """The one way to change a mesh."""

    def __init__(self, store: RelayStore, meshes: Meshes) -> None:
        self._store = store
        self.meshes = meshes
        self._gate = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    async def make(self, prepare: Callable[[], tuple[Callable[[Unit], R], Callable[[R], None]]]) -> R:
        """Make a change.

        `prepare` judges against the present state and raises a refusal, or returns what to write and what to do in
        memory once that is committed.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._make(prepare, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await answer

    async def _make(
        self,
        prepare: Callable[[], tuple[Callable[[Unit], R], Callable[[R], None]]],
        answer: asyncio.Future[R],
    ) -> None:
        try:
            async with self._gate:
                write, take_over = prepare()
                result = await self._store.submit(write)
                take_over(result)
        except Exception as failure:  # noqa: BLE001 - it belongs to the caller, who awaits the answer
            if not answer.done():
                answer.set_exception(failure)
            return
        if not answer.done():  # the caller may have gone
            answer.set_result(result)
