"""A Pinch connection as deliveries see it: what they send are frames that are ready for the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posthouse.relay.pinch.connection import PinchConnection


class PinchPeer:
    """Implements posthouse.relay.deliver.peer.Peer."""

    separator = b""

    def __init__(self, connection: PinchConnection) -> None:
        self._connection = connection
        self._outbox = connection.outbox

    def deliver(self, text: bytes, count: int) -> None:
        if self._connection.ending is None:  # nothing follows a close frame
            self._outbox.write(text)

    def tell(self, frame: bytes) -> None:
        """Say nothing: this wire knows no presence."""

    def has_room(self, size: int, count: int) -> bool:
        return self._outbox.has_room(size, count)

    async def drain(self) -> None:
        await self._outbox.drain()

    @property
    def taken_bytes(self) -> int:
        return self._outbox.sent_bytes if self._outbox.unsent_bytes else -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        self._connection.ping(on_pong)

    def end(self, code: int, reason: str) -> None:
        self._connection.end(code, reason)
