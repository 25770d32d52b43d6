"""The buffer between a relay and the reader of a subscription: bounded in events and bytes, first in first out."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Buffer(Generic[T]):
    """Items for one reader."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """Whether another item may be put; the last one may go over the bound of bytes."""
        return len(self._items) < self._max_items and self._bytes < self._max_bytes

    @property
    def is_low(self) -> bool:
        """Whether the reader has taken enough that asking for more is worth it."""
        return len(self._items) * 2 <= self._max_items and self._bytes * 2 <= self._max_bytes

    def put(self, item: T, size: int = 0) -> None:
        """Add an item; whoever puts looks at `has_room` first."""
        self._items.append((item, size))
        self._bytes += size
        self._changed.set()

    def take(self) -> T | None:
        """Remove and return the oldest item, or None when there is none."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self._bytes -= size
        return item

    def wake(self) -> None:
        """Let the reader look again: something else has changed."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until something was put or changed."""
        await self._changed.wait()
        self._changed.clear()
