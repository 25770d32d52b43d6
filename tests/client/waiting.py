"""Bounded waits for tests: a missing item fails the test instead of hanging it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 20


async def take(source: AsyncIterator[T], count: int) -> list[T]:
    """Return the next `count` items."""
    taken: list[T] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken.append(await anext(source))
    return taken


async def until(is_true: Callable[[], bool]) -> None:
    """Wait until a condition holds, for states without an event to wait on."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - there is no event to wait on
            await asyncio.sleep(0.005)
