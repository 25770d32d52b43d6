"""What the metrics hear of locks; the relay's meters listen, and without them nobody does."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Counts and measures by the names that posthouse.model.metrics declares."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Add one value to a histogram."""
        ...


class Nobody:
    """Listens to nothing."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Forget it."""

    def observe(self, name: str, value: float) -> None:
        """Forget it."""
