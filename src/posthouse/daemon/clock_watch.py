"""Whether this machine's wall clock can be trusted to compute ages, and a lower bound of the current time.

A relay admits a node only if their clocks agree within 15 minutes, so each login confirms the wall clock. Boot time
never steps: a wall clock that moved away from it since then was set, and is not trusted before the next login confirms
it. Before the first login it is trusted after a day, so that a host without a relay still deletes what it must.
Invariants: while `is_plausible` is False the daemon neither gives up nor deletes anything because of its age. The watch
is the clock of outbox and inbox, and their timestamps are never earlier than the last login plus the boot time since: a
message that is sent while the clock is set back would look too old as soon as the clock is right.
"""

from __future__ import annotations

from collections.abc import Callable

from posthouse.client.trust.signing import Login
from posthouse.model.clock import Clock
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, DAY_S, SECOND_NS

#: as much as a relay tolerates at a login
TOLERANCE_NS = CREATED_AT_MAX_AHEAD_NS
#: without a relay: a clock that did not step for this long is trusted
TRUSTED_AFTER_NS = DAY_S * SECOND_NS


class ClockWatch:
    """Compares the wall clock with boot time and with the relay's time."""

    def __init__(self, clock: Clock, last_login: Login | None = None) -> None:
        self._clock = clock
        self._started_ns = clock.boot_ns()
        self._anchor = self._now()
        self._is_confirmed = False
        #: the difference at the anchor, if the relay reported its time
        self._difference_ns: int | None = None
        #: the last login of this boot, also of an earlier process
        self.login = last_login
        #: callback(login) after the relay has admitted this node
        self.on_login: Callable[[Login], None] = lambda _login: None

    # the clock of outbox and inbox

    @property
    def boot_id(self) -> str:
        return self._clock.boot_id

    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def wall_ns(self) -> int:
        """Return the wall time, or the lower bound if the wall clock was set back."""
        wall_ns, earliest_ns = self._clock.wall_ns(), self.earliest_ns
        return wall_ns if earliest_ns is None or earliest_ns - wall_ns <= TOLERANCE_NS else earliest_ns

    @property
    def earliest_ns(self) -> int | None:
        """A lower bound of the current time: the last login plus the boot time since; None without a login."""
        login = self.login
        return None if login is None else login.wall_ns + self._clock.boot_ns() - login.boot_ns

    def confirm(self, difference_s: float | None = None, login: Login | None = None) -> None:
        """Record that the relay has admitted this node, and how far this clock is ahead of the relay's, if known.

        `login` has the clocks of the proof that the relay accepted: the wall clock may have been set since.
        """
        self._is_confirmed = True
        self.login = self._now() if login is None else login
        self.on_login(self.login)
        is_told = difference_s is not None and abs(difference_s) * SECOND_NS <= TOLERANCE_NS
        self._set(self.login, difference_s if is_told else None)  # a proxy in front of the relay may have another time

    def refuse(self, difference_s: float) -> None:
        """Note that the relay does not admit this node because this clock is too far ahead of or behind its own."""
        self._is_confirmed = False
        self._set(self._now(), difference_s)

    @property
    def difference_s(self) -> float | None:
        """How far this clock is ahead of the relay's; None if the relay did not report its time."""
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

    def _set(self, anchor: Login, difference_s: float | None) -> None:
        self._anchor = anchor
        self._difference_ns = None if difference_s is None else round(difference_s * SECOND_NS)

    def _now(self) -> Login:
        return Login(self._clock.wall_ns(), self._clock.boot_ns())

    def _step_ns(self) -> int:
        """How far the wall clock was set since the anchor."""
        now = self._now()
        return (now.wall_ns - self._anchor.wall_ns) - (now.boot_ns - self._anchor.boot_ns)
