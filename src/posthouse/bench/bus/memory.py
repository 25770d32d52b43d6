"""Memory over many publishes: what a long-lived agent process grows by."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from posthouse.bench.bus.terms import LIMITS, SUBJECT, Scale
from posthouse.bench.bus.throughput import Counted, publish_together
from posthouse.bus import Bus

_MIB = 1 << 20
_PARTS = 20


async def measure(folder: Path, scale: Scale) -> dict[str, Any]:
    """Publish and handle in equal parts; compare the memory after the first tenth with that at the end."""
    counted = Counted()
    resident: list[int] = []
    part = scale.memory_publishes // _PARTS
    async with Bus(folder, reliability=LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.subscribe(SUBJECT, counted)
        for _ in range(_PARTS):
            counted.expect(part)
            await publish_together(bus, part)
            await counted.wait()
            gc.collect()
            resident.append(resident_bytes())
    warm = resident[_PARTS // 10]
    return {
        "publishes": part * _PARTS,
        "warm_mib": round(warm / _MIB, 1),
        "end_mib": round(resident[-1] / _MIB, 1),
        "growth_mib": round((max(resident[-3:]) - warm) / _MIB, 1),
        "curve_mib": [round(value / _MIB, 1) for value in resident],
    }


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system tells no resident memory")
