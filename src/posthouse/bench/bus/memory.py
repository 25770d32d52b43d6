"""Memory over many publishes: what a long-lived agent process grows by.

The files of this measurement lie in memory where the system offers that: no time is measured here, and on some file
systems creating a file gets slower with every one that was deleted a moment ago, which makes a million take hours. The
journal is kept short, as it is in a bus that has run for long.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posthouse.bench.bus.terms import LIMITS, SUBJECT, Scale
from posthouse.bench.bus.throughput import Counted, publish_together
from posthouse.bus import Bus, Retention

_MIB = 1 << 20
_PARTS = 20
_MEMORY_DISK = Path("/dev/shm")
_ROOM_BYTES = 2_048 * _MIB  # what a million messages and their journal take at most
_JOURNAL_BYTES = 64 * _MIB


async def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Publish and handle in equal parts; compare the memory after the first tenth with that at the end."""
    with _place(folder) as place:
        resident = await _run(place / "bus", scale.memory_publishes // _PARTS)
    warm = resident[_PARTS // 10]
    return {
        "publishes": scale.memory_publishes // _PARTS * _PARTS,
        "warm_mib": round(warm / _MIB, 1),
        "end_mib": round(resident[-1] / _MIB, 1),
        "growth_mib": round((max(resident[-3:]) - warm) / _MIB, 1),
        "curve_mib": [round(value / _MIB, 1) for value in resident],
    }


async def _run(folder: Path, part: int) -> list[int]:
    """Return the resident memory after each part."""
    counted = Counted()
    resident: list[int] = []
    async with Bus(folder, reliability=LIMITS, retention=Retention(max_bytes=_JOURNAL_BYTES)) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, counted)
        for _ in range(_PARTS):
            counted.expect(part)
            await publish_together(bus, part)
            await counted.wait()
            await bus.session.housekeeping.prune()
            gc.collect()
            resident.append(resident_bytes())
    return resident


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """Give a folder in memory if there is room, else the one on the disk."""
    if not has_room(_MEMORY_DISK):
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=_MEMORY_DISK) as place:
        yield Path(place)


def has_room(disk: Path) -> bool:
    """Tell whether a directory is there, may be written to, and has room for a million messages."""
    if not os.access(disk, os.W_OK):
        return False
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize >= _ROOM_BYTES


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system tells no resident memory")
