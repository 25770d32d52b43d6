"""Bounded waiting: check until a condition holds, and fail with the last value if it never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 15  # far above what a loaded machine needs, so that only a defect reaches it
_PAUSE_S = 0.004


async def eventually(look: Callable[[], T], until: Callable[[T], bool] = bool, within_s: float = DEADLINE_S) -> T:
    """Return the first value of `look` that `until` accepts; fail with the last one at the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        seen = look()
        if until(seen):
            return seen
        if loop.time() > deadline:
            raise AssertionError(f"not within {within_s} s; last seen: {seen!r}")
        await asyncio.sleep(_PAUSE_S)


async def bounded(event: asyncio.Event, within_s: float = DEADLINE_S) -> None:
    """Wait for an event until the deadline."""
    await asyncio.wait_for(event.wait(), within_s)
