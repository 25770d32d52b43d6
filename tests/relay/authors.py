"""Authors of signed events, for tests of the relay."""

from __future__ import annotations

from typing import Any

from posthouse.keys import NodeKey, sign_native
from posthouse.model.clock import Clock, FakeClock
from posthouse.model.event import Event, canonical_event_bytes, encode_event, event_id


class Author:
    """A key that writes events, each a nanosecond after the one before."""

    def __init__(self, number: int, clock: Clock | None = None) -> None:
        self.key = NodeKey(number.to_bytes(32, "big"))
        self.node = self.key.node
        self._clock = clock or FakeClock()
        self._made = 0

    def event(
        self,
        kind: int = 1,
        *tags: tuple[str, ...],
        content: str = "",
        created_at_ns: int | None = None,
    ) -> Event:
        """Return a signed event, created now by default."""
        self._made += 1
        at_ns = self._clock.wall_ns() + self._made if created_at_ns is None else created_at_ns
        canonical = canonical_event_bytes(self.node, at_ns, kind, tags, content)
        return Event(
            id=event_id(canonical),
            pubkey=self.node,
            created_at_ns=at_ns,
            kind=kind,
            tags=tags,
            content=content,
            sig=sign_native(self.key, canonical),
        )

    def raw(self, *args: Any, **fields: Any) -> bytes:
        """Return a signed event as JSON."""
        return encode_event(self.event(*args, **fields))

    def message(self, recipient: str, number: int = 1, content: str = "hello") -> Event:
        """Return a direct message."""
        return self.event(1000, ("p", recipient), ("c", f"message-{number}"), content=content)


ALICE, BOB, CAROL = Author(1), Author(2), Author(3)
