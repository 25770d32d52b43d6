"""Waiting for what the relay does by itself, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE_S = 20
_LOOK_EVERY_S = 0.01


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return once something holds; fail when it does not in time."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - no event says when
            await asyncio.sleep(_LOOK_EVERY_S)
