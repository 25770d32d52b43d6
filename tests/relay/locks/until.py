"""Waiting for a condition, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_STEP_S = 0.005
_STEPS = 4_000


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; fail after about twenty seconds."""
    for _ in range(_STEPS):
        if condition():
            return
        await asyncio.sleep(_STEP_S)
    raise AssertionError("the condition never held")
