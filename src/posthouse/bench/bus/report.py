"""One run of all measurements of the bus."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from posthouse.bench.bus import fan_out, latency, matching, memory, rebuilding, throughput, waiting
from posthouse.bench.bus.requirements import DORKOS, judge
from posthouse.bench.bus.terms import LIMITS, PAYLOAD, PAYLOAD_BYTES, SENDER, SUBJECT, Scale
from posthouse.bus import Bus


async def measure_bus(folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    file_bytes = await _file_bytes(folder / "probe")
    report: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "cpus": _cpus(), "kernel": platform.release()},
        "limits": msgspec.to_builtins(LIMITS),
        "payload_bytes": PAYLOAD_BYTES,
        "file_bytes": file_bytes,
    }
    tell("throughput")
    report["throughput"] = await throughput.measure(folder / "throughput", scale, file_bytes)
    tell("latency")
    report["latency"] = await latency.measure(folder / "latency", scale)
    tell("fan-out")
    report["fan_out"] = await fan_out.measure(folder / "fan_out", scale, file_bytes)
    tell("full mailbox")
    report["waiting"] = await waiting.measure(folder / "waiting", scale)
    tell("rebuild")
    report["rebuild"] = await rebuilding.measure(folder / "rebuild", scale)
    tell("matching")
    report["matching"] = matching.measure(scale)
    tell("memory")
    report["memory"] = await memory.measure(folder / "memory", scale)
    return report | {"required": judge(report), "dorkos": DORKOS}


def run(folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the measurements on an event loop of their own."""
    return asyncio.run(measure_bus(folder, scale, tell))


async def _file_bytes(folder: Path) -> int:
    """Return the size of the file the bus writes for the bench's payload."""
    async with Bus(folder, reliability=LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)
    (stored,) = (folder / "mailboxes").glob("*/new/*")
    return stored.stat().st_size


def _cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))
