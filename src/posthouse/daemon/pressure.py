"""How full the outbox is: of its own bound, and of what the disk still gives it.

The capacity is the smaller of outbox.max_bytes and what is used plus what is free on the disk. At 80 % listeners are
told, once until it falls below again; at 95 % the accept refuses (see outbox.accept).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from posthouse.daemon.outbox import Depth

log = structlog.get_logger(__name__)
WARN_AT = 0.8


def free_bytes(directory: Path) -> int:
    """Return what an ordinary user may still write on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Pressure:
    """The room of one outbox, looked at every now and then."""

    def __init__(self, max_bytes: int, directory: Path, read_free: Callable[[Path], int] = free_bytes) -> None:
        self._max_bytes = max_bytes
        self._directory = directory
        self._read_free = read_free
        self._is_warned = False
        self.capacity_bytes = max_bytes
        #: told the bytes used and the capacity when the outbox becomes full, and whether it is
        self.on_pressure: Callable[[int, int, bool], None] = lambda _used, _capacity, _is_high: None

    def look(self, depth: Depth) -> bool:
        """Judge how full it is; return whether it has just become nearly full."""
        self.capacity_bytes = min(self._max_bytes, depth.bytes + self._read_free(self._directory))
        is_high = depth.bytes >= WARN_AT * self.capacity_bytes
        if is_high == self._is_warned:
            return False
        self._is_warned = is_high
        if is_high:
            log.warning("outbox_pressure", used=depth.bytes, capacity=self.capacity_bytes)
        self.on_pressure(depth.bytes, self.capacity_bytes, is_high)
        return is_high
