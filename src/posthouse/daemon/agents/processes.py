"""Processes of this machine, named by id and start time: an id alone may be reused after its process has ended.

On Linux the start is the boot id and the clock ticks since that boot, so a stored process never matches one of a
later boot. Where /proc is missing the start is empty, and only the id is compared.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from posthouse.model.errors import error

_START_FIELD = 19  # of /proc/PID/stat after the command's name: field 22, the start in clock ticks
PID_MAX = 2**31 - 1  # a pid_t has 32 bits


class ProcessRef(NamedTuple):
    """One process."""

    pid: int
    start: str

    @property
    def key(self) -> str:
        """The process as text, for tables."""
        return f"{self.pid}:{self.start}"

    def is_running(self, root: Path = Path("/proc")) -> bool:
        """Return True while the process exists."""
        try:
            return find_process(self.pid, root) == self
        except OSError:
            return False


def find_process(pid: int, root: Path = Path("/proc")) -> ProcessRef | None:
    """Return the process that has an id now, or None if there is none."""
    if not (root / "self/stat").exists():
        return ProcessRef(pid, "") if _exists(pid) else None
    try:
        stat = (root / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):  # ended; its parent has not read the exit status yet
        return None
    boot = (root / "sys/kernel/random/boot_id").read_text().strip()
    return ProcessRef(pid, f"{boot}:{fields[_START_FIELD]}")


def require_process(pid: int) -> ProcessRef:
    """Return the process that has an id now, or raise process_unknown."""
    found = find_process(pid) if 0 < pid <= PID_MAX else None
    if found is None:
        raise error("process_unknown", pid=pid)
    return found


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
