"""Clocks: the only place that reads the time.

Wall time is for people and created_at; it may step. Boot time (CLOCK_BOOTTIME) never steps and counts through
suspend; decisions that must survive wall-clock steps use it, and stored boot times carry `boot_id`, because
another boot voids them. Rules never read a clock: they take the time as an argument.

POSTHOUSE_TEST_CLOCK=FILE steps the clocks of real processes: the file holds
``{"wall_offset_ns": n, "boot_offset_ns": n}`` and is read again at each use.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

TEST_CLOCK_ENV = "POSTHOUSE_TEST_CLOCK"
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the rest of posthouse may know about time."""

    @property
    def boot_id(self) -> str:
        """Return the id of this boot; stored boot times of another id mean nothing."""
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

    def wall_ns(self) -> int:
        return time.time_ns()  # noqa: TID251 - this is the one place

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME)


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
    """A clock that stands still until a test moves it."""

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
        """Start another boot: boot time begins anew under a new boot id."""
        self._boots += 1
        self._boot_ns = 0


def system_clock(environ: Mapping[str, str] = os.environ) -> Clock:
    """Return the clock this process should use: the machine's, or the stepped one a test asked for."""
    offsets = environ.get(TEST_CLOCK_ENV)
    return SteppedClock(Path(offsets)) if offsets else SystemClock()


def _read_boot_id() -> str:
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except FileNotFoundError:  # not Linux: every process start counts as a boot, which only voids more
        return f"process-{os.getpid()}-{time.clock_gettime_ns(_BOOTTIME)}"


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
