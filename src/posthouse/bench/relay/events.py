"""Events for the measurements, signed before the clock runs."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.bench.relay.terms import KIND
from posthouse.client.signing import sign_event
from posthouse.keys import NodeKey
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event, encode_event

_CONTENT = "x" * 200


class Supply:
    """Signs events of one key; no two are equal."""

    def __init__(self, key: NodeKey | None = None) -> None:
        self.key = key or NodeKey.generate()
        self._at_ns = SystemClock().wall_ns()

    def take(self, count: int, tag: str = "bench") -> list[Event]:
        """Return fresh events, about 500 bytes of JSON each."""
        return [self._sign(number, tag) for number in range(count)]

    def commands(self, count: int, tag: str = "bench") -> list[bytes]:
        """Return fresh events as EVENT commands."""
        return [b'["EVENT",%b]' % encode_event(event) for event in self.take(count, tag)]

    def _sign(self, number: int, tag: str) -> Event:
        self._at_ns += 1
        return sign_event(self.key, KIND, _CONTENT, (("t", tag), ("n", str(number))), self._at_ns)


def in_frames(commands: list[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield commands in groups."""
    for start in range(0, len(commands), size):
        yield commands[start : start + size]
