"""The other end of an open mailbox as deliveries see it: it takes frames, answers pings and can be ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Peer(Protocol):
    """One connection, whatever its wire."""

    #: what stands between commands that go out together
    separator: bytes

    def deliver(self, text: bytes, count: int) -> None:
        """Send commands, given as one text or joined by the separator; must not wait."""
        ...

    def tell(self, frame: bytes) -> None:
        """Send a frame that is ready for the wire and shared with others."""
        ...

    def has_room(self, size: int, count: int) -> bool:
        """Tell whether so many more messages may be written without waiting."""
        ...

    async def drain(self) -> None:
        """Wait until what was written is taken."""
        ...

    @property
    def taken_bytes(self) -> int:
        """How many bytes the peer has taken so far, as long as some are left; else a number that stands still."""
        ...

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a ping; `on_pong` is called once the peer has read everything before it."""
        ...

    def end(self, code: int, reason: str) -> None:
        """Close the connection."""
        ...
