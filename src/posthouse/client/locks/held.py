"""A lock that is held: its token, and how long it is safe to believe so.

The deadline is this node's own: counted in boot time from before the request that got or renewed the lease was sent,
less a margin for clocks that run at different speeds. The relay counts from later, so here it ends first. What the
relay says about wall time is never compared with anything.
"""

from __future__ import annotations

from posthouse.model.clock import Clock
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS

MARGIN = 0.05  # of the lease: two clocks that differ by a twentieth are both broken


class Held:
    """One grant in the hands of its owner."""

    def __init__(self, resource: str, mesh: str, token: int, lease_ms: int, asked_boot_ns: int, clock: Clock) -> None:
        self.resource = resource
        self.mesh = mesh
        #: the fencing token: send it with every protected write
        self.token = token
        self.lease_ms = lease_ms
        self._clock = clock
        self._deadline_boot_ns = 0
        self._is_over = False
        self.extend(asked_boot_ns)

    def is_valid(self) -> bool:
        """Tell whether the lock is held for sure; ask right before anything that needs it."""
        return not self._is_over and self._clock.boot_ns() < self._deadline_boot_ns

    def remaining_s(self) -> float:
        """Return for how long the lock is held for sure."""
        return 0.0 if self._is_over else max(0.0, (self._deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS)

    def extend(self, asked_boot_ns: int) -> None:
        """Count the lease from when its renewal was asked for."""
        length_ns = round(self.lease_ms * MILLISECOND_NS * (1 - MARGIN))
        self._deadline_boot_ns = max(self._deadline_boot_ns, asked_boot_ns + length_ns)

    def end(self) -> None:
        """Say that the lock is not held any more."""
        self._is_over = True
