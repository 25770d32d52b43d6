"""Time: the clocks, and timestamps as text. The only place that reads the time.

Wall time is for people and created_at; it may step. Boot time (CLOCK_BOOTTIME) never steps and counts through suspend;
decisions that must survive wall-clock steps use it, and stored boot times carry `boot_id`, because they are invalid
after another boot. Rules never read a clock: they take the time as an argument. POSTHOUSE_TEST_CLOCK=FILE steps the
clocks of real processes: the file holds ``{"wall_offset_ns": n, "boot_offset_ns": n}`` and is read at each use.

Timestamps are written as ISO-8601 in UTC with milliseconds and `Z`; reading accepts other fractions and offsets.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX, SECOND_NS

TEST_CLOCK_ENV = "POSTHOUSE_TEST_CLOCK"
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
STEADY_S = (
    3_600.0  # needed without a step before content is deleted by age: gives NTP, or a person, time to correct the clock
)
_STEP_NS = 5 * SECOND_NS  # between two checks; NTP corrects smaller differences without a step
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The time source of the rest of posthouse."""

    @property
    def boot_id(self) -> str:
        """Return the id of this boot; stored boot times with another id cannot be compared."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch; may step either way."""
        ...

    def boot_ns(self) -> int:
        """Return nanoseconds since boot, suspend included; never steps."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    @property
    def boot_id(self) -> str:
        return self._boot_id

    # the functions themselves: every event reads both clocks several times
    wall_ns = staticmethod(time.time_ns)  # noqa: TID251 - the only place that reads the clock
    boot_ns = staticmethod(partial(time.clock_gettime_ns, _BOOTTIME))


class SteppedClock(SystemClock):
    """The machine's clocks plus offsets from a file, so that a test can step the time of a real process."""

    def __init__(self, offsets: Path) -> None:
        super().__init__()
        self.offsets = offsets

    def wall_ns(self) -> int:
        return super().wall_ns() + self._offset("wall_offset_ns")

    def boot_ns(self) -> int:
        return super().boot_ns() + self._offset("boot_offset_ns")

    def _offset(self, key: str) -> int:
        try:
            text = self.offsets.read_text()
        except FileNotFoundError:
            return 0
        value = json.loads(text).get(key, 0) if text else 0
        return int(value)


class FakeClock:
    """A clock that changes only when a test moves it."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, boot_ns: int = 1_000_000_000_000) -> None:
        self._wall_ns = wall_ns
        self._boot_ns = boot_ns
        self._boots = 1

    @property
    def boot_id(self) -> str:
        return f"fake-boot-{self._boots}"

    def wall_ns(self) -> int:
        return self._wall_ns

    def boot_ns(self) -> int:
        return self._boot_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._wall_ns += round(seconds * 1e9)
        self._boot_ns += round(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would."""
        self._wall_ns += round(seconds * 1e9)

    def reboot(self) -> None:
        """Start another boot: boot time restarts at zero under a new boot id."""
        self._boots += 1
        self._boot_ns = 0


class SteadyTime:
    """Reports whether the wall clock has run evenly for a while: right after a step no age may be trusted."""

    def __init__(self, clock: Clock, for_s: float = STEADY_S) -> None:
        self._clock = clock
        self._for_ns = round(for_s * SECOND_NS)
        self._since_ns = clock.boot_ns()
        self._offset_ns = clock.wall_ns() - self._since_ns

    def is_steady(self) -> bool:
        """Return True if the clock has run long enough without a step: since the beginning, or since its last step."""
        now_ns = self._clock.boot_ns()
        offset_ns = self._clock.wall_ns() - now_ns
        if abs(offset_ns - self._offset_ns) > _STEP_NS:
            self._since_ns = now_ns
        self._offset_ns = offset_ns
        return now_ns - self._since_ns >= self._for_ns


def system_clock(environ: Mapping[str, str] = os.environ) -> Clock:
    """Return the clock of this process: the machine's, or the stepped one of a test."""
    offsets = environ.get(TEST_CLOCK_ENV)
    return SteppedClock(Path(offsets)) if offsets else SystemClock()


def _read_boot_id() -> str:
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except FileNotFoundError:  # not Linux: every process start counts as a boot, which only invalidates more
        return f"process-{os.getpid()}-{time.clock_gettime_ns(_BOOTTIME)}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def format_utc(wall_ns: int) -> str:
    """Return the time as in 2026-01-31T09:30:00.250Z; digits below the millisecond are truncated."""
    seconds, rest = divmod(wall_ns, SECOND_NS)
    return f"{_format_second(seconds)}.{rest // 1_000_000:03d}Z"


def parse_utc(text: str) -> int:
    """Return nanoseconds since 1970, or raise value_invalid; a time without a zone is refused."""
    if type(text) is not str:
        raise error("value_invalid", name="timestamp", reason=f"{text!r} is not ISO-8601 with a zone")
    return _parse(text)


@lru_cache(maxsize=64)  # many messages are created within one second
def _format_second(seconds: int) -> str:
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


@lru_cache(maxsize=4096)  # the time of a message is parsed when it is created, stored and handled
def _parse(text: str) -> int:
    form = _FORM.fullmatch(text)
    if form is None:
        raise error("value_invalid", name="timestamp", reason=f"{text!r} is not ISO-8601 with a zone")
    fraction = (form[1] or ".")[1:]
    try:
        moment = datetime.fromisoformat(text.replace(form[1] or "", "", 1) if form[1] else text)
    except ValueError as fault:
        raise error("value_invalid", name="timestamp", reason=str(fault)) from fault
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    wall_ns = whole * SECOND_NS + int(fraction.ljust(9, "0"))
    if abs(wall_ns) > INT64_MAX:
        raise error("value_invalid", name="timestamp", reason=f"{text!r} is not between the years 1677 and 2262")
    return wall_ns
