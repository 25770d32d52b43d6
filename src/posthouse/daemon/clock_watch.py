"""Whether this machine's wall clock may decide what is too old.

A relay admits a node only if their clocks agree within 15 minutes, so each login confirms the wall clock. Boot time
never steps: a wall clock that moved away from it since then was set, and is not trusted before the next login confirms
it. Before the first login it is trusted after a day, so that a host without a relay still deletes what it must.
Invariant: while `is_plausible` is False the daemon gives up and deletes nothing by age.
"""

from __future__ import annotations

from typing import NamedTuple

from posthouse.model.clock import Clock
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, DAY_S, SECOND_NS

#: as much as a relay tolerates at a login
TOLERANCE_NS = CREATED_AT_MAX_AHEAD_NS
#: without a relay: a clock that did not step for so long is the one that this host lives by
TRUSTED_AFTER_NS = DAY_S * SECOND_NS


class _Anchor(NamedTuple):
    """Both clocks at one moment."""

    wall_ns: int
    boot_ns: int


class ClockWatch:
    """Compares the wall clock with boot time and with the relay's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ns = clock.boot_ns()
        self._anchor = self._now()
        self._is_confirmed = False
        #: the difference at the anchor, if the relay told its time
        self._difference_ns: int | None = None

    def confirm(self, difference_s: float | None = None) -> None:
        """Note that the relay has admitted this node, and how far this clock is ahead of the relay's, if known."""
        self._is_confirmed = True
        is_told = difference_s is not None and abs(difference_s) * SECOND_NS <= TOLERANCE_NS
        self._set(difference_s if is_told else None)  # a proxy before the relay may have another time

    def refuse(self, difference_s: float) -> None:
        """Note that the relay does not admit this node because this clock is so far ahead of its own, or behind."""
        self._is_confirmed = False
        self._set(difference_s)

    @property
    def difference_s(self) -> float | None:
        """How far this clock is ahead of the relay's; None if the relay did not tell its time."""
        if self._difference_ns is None:
            return None
        return (self._difference_ns + self._step_ns()) / SECOND_NS

    @property
    def is_plausible(self) -> bool:
        """True if ages can be computed with this clock."""
        if abs((self._difference_ns or 0) + self._step_ns()) > TOLERANCE_NS:
            return False
        is_refused = self._difference_ns is not None and not self._is_confirmed
        return self._is_confirmed or (not is_refused and self._clock.boot_ns() - self._started_ns > TRUSTED_AFTER_NS)

    @property
    def doubt(self) -> str | None:
        """Why ages are not computed with this clock, as a sentence; None if they are."""
        if self.is_plausible:
            return None
        if self._difference_ns is not None and not self._is_confirmed:
            return "the relay refused this clock"
        if self._is_confirmed:
            return "the clock was set since the relay confirmed it"
        return "no relay has confirmed the clock since the daemon started"

    def _set(self, difference_s: float | None) -> None:
        self._anchor = self._now()
        self._difference_ns = None if difference_s is None else round(difference_s * SECOND_NS)

    def _now(self) -> _Anchor:
        return _Anchor(self._clock.wall_ns(), self._clock.boot_ns())

    def _step_ns(self) -> int:
        """How far the wall clock was set since the anchor."""
        now = self._now()
        return (now.wall_ns - self._anchor.wall_ns) - (now.boot_ns - self._anchor.boot_ns)
