"""Where a fence remembers its token: a slot that one caller at a time may read and write."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Slot(Protocol):
    """The token of one fence, while nobody else can reach it."""

    def read(self) -> int | None:
        """Return the highest token seen, None when there was none."""
        ...

    def write(self, token: int) -> None:
        """Remember a higher token, durably: when this returns, no crash can undo it."""
        ...


class Memory(Protocol):
    """A durable place for one token."""

    @property
    def name(self) -> str:
        """What the fence is called in errors."""
        ...

    def open(self) -> AbstractContextManager[Slot]:
        """Reach the slot, alone."""
        ...
