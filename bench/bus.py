"""All measurements of the bus in one run, with their required values.

The figures of DorkOS were measured on the same class of machine (Node 20, two cores, 256 bytes). The report shows
them for comparison only.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench import bus_growth, bus_latency, bus_throughput
from bench.comparison import Requirement, describe_machine
from bench.scales import BUS_LIMITS, PAYLOAD, PAYLOAD_BYTES, SENDER, SUBJECT, BusScale
from posthouse.bus import Bus

DORKOS: dict[str, Any] = {
    "one_by_one_per_s": 309,
    "in_flight_64_per_s": 556,
    "publish_to_handler_p50_ms": 2.6,
    "fan_out_deliveries_per_s": [464, 623],
    "rebuild_files_per_s": 1_404,
    "match_10000_us": 5_400,
}
REQUIRED = (
    Requirement(
        "One publish at a time, relative to the floor", "throughput", "one_by_one_ratio", "at least", 0.12, 0.25
    ),
    Requirement("64 in flight, relative to the floor", "throughput", "in_flight_64_ratio", "at least", 0.25, 0.35),
    Requirement("Publish to handler in one process, p50 ms", "latency", "one_process_p50_ms", "at most", 1.0),
    Requirement("Publish to handler across processes, p50 ms", "latency", "across_processes_p50_ms", "at most", 5.0),
    Requirement("Fan-out to 50 endpoints, relative to the floor", "fan_out", "ratio", "at least", 0.3),
    Requirement(
        "Publish into a mailbox with 10,000 messages, relative to an empty one", "waiting", "ratio", "at least", 0.8
    ),
    Requirement("Index rebuild, relative to bare reading and parsing", "rebuild", "ratio", "at least", 0.3),
    Requirement("Matching with 10,000 subscriptions, relative to 100", "matching", "ratio", "at most", 3.0),
    Requirement("Memory growth over all publishes, MiB", "memory", "growth_mib", "at most", 8.0),
)


def evaluate(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with its measured value."""
    return [requirement.evaluate(report) for requirement in REQUIRED]


async def measure_bus(folder: Path, scale: BusScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    file_bytes = await _file_bytes(folder / "probe")
    report: dict[str, Any] = {
        "machine": describe_machine() | {"kernel": platform.release()},
        "limits": msgspec.to_builtins(BUS_LIMITS),
        "payload_bytes": PAYLOAD_BYTES,
        "file_bytes": file_bytes,
    }
    on_progress("throughput")
    report["throughput"] = await bus_throughput.measure_throughput(folder / "throughput", scale, file_bytes)
    on_progress("latency")
    report["latency"] = await bus_latency.measure_latency(folder / "latency", scale)
    on_progress("fan-out")
    report["fan_out"] = await bus_throughput.measure_fan_out(folder / "fan_out", scale, file_bytes)
    on_progress("full mailbox")
    report["waiting"] = await bus_growth.measure_waiting(folder / "waiting", scale)
    on_progress("rebuild")
    report["rebuild"] = await bus_growth.measure_rebuild(folder / "rebuild", scale)
    on_progress("matching")
    report["matching"] = bus_growth.measure_matching(scale)
    on_progress("memory")
    report["memory"] = await bus_growth.measure_memory(folder / "memory", scale)
    return report | {"required": evaluate(report), "dorkos": DORKOS}


def run_bus(folder: Path, scale: BusScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the measurements on a new event loop."""
    return asyncio.run(measure_bus(folder, scale, on_progress))


async def _file_bytes(folder: Path) -> int:
    """Return the size of the file that the bus writes for the payload."""
    async with Bus(folder, reliability=BUS_LIMITS) as bus:
        await bus.register_endpoint(SUBJECT)
        await bus.publish(SUBJECT, PAYLOAD, from_=SENDER)
    (stored,) = (folder / "mailboxes").glob("*/new/*")
    return stored.stat().st_size
