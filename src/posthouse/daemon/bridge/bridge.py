"""The bridge between the mesh and the host's bus."""

from __future__ import annotations

from pathlib import Path

from posthouse.daemon.inbox import Inbox
from posthouse.daemon.send import Sending
from posthouse.model.clock import Clock


class Bridge:
    """Carries mail between inbox, bus and outbox."""

    def __init__(self, bus_dir: Path, mesh: str, inbox: Inbox, sending: Sending, clock: Clock) -> None:
        self._bus_dir = bus_dir

    async def start(self) -> None:
        """Open the bus."""

    async def close(self) -> None:
        """Close the bus."""
