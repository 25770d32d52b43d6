"""Waiting for mail over breaks: how long to ask the daemon to wait, and when to give up.

A wait is asked for in slices, so that a daemon which is restarted meanwhile is noticed and asked again. Times are
boot times: a step of the wall clock changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from posthouse.client.backoff import Backoff
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError

SLICE_S = 25.0
#: a stream that says nothing for so long is broken: the daemon comments every 15 s
SILENCE_S = 45.0
_SECOND_NS = 1_000_000_000


@dataclass
class Patience:
    """What is left of one wait."""

    timeout_s: float
    clock: Clock = field(default_factory=system_clock)
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.05, most_s=2.0))

    def __post_init__(self) -> None:
        self._end_ns = self.clock.boot_ns() + round(self.timeout_s * _SECOND_NS)

    @property
    def left_s(self) -> float:
        """Return how much of the wait is left."""
        return max(0.0, (self._end_ns - self.clock.boot_ns()) / _SECOND_NS)

    def slice_s(self) -> float:
        """Return how long the next request may be held."""
        return min(SLICE_S, self.left_s)

    def pause_s(self, failure: PosthouseError) -> float:
        """Return how long to wait before asking again, or raise the failure when that makes no sense."""
        if failure.code != "daemon_unreachable" or self.left_s <= 0:
            raise failure
        return min(self.backoff.next_s(), self.left_s)
