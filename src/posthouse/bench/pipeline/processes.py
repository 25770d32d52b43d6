"""This process and everything below it, as the kernel tells of them: Spark's JVM and its Python workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# fields of /proc/PID/stat behind the name
_PARENT, _RESIDENT = 1, 21
_TIMES = slice(11, 15)  # user and system, its own and those of children that ended


class Process(NamedTuple):
    """What one process has taken so far."""

    pid: int
    parent: int
    name: str
    resident_bytes: int
    cpu_s: float


def family() -> list[Process]:
    """Return this process and everything below it."""
    everyone = {each.pid: each for each in _everyone()}
    found = {os.getpid()}
    while fresh := {pid for pid, each in everyone.items() if each.parent in found} - found:
        found |= fresh
    return [everyone[pid] for pid in found]


def cpu_seconds() -> float:
    """Return the processor time that this process and everything below it have taken."""
    return sum(each.cpu_s for each in family())


def _everyone() -> list[Process]:
    found: list[Process] = []
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        fields = rest.split()
        resident, times = int(fields[_RESIDENT]) * _PAGE_BYTES, sum(map(int, fields[_TIMES])) / _TICKS
        found.append(Process(int(path.parent.name), int(fields[_PARENT]), head.partition("(")[2], resident, times))
    return found
