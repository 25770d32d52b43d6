"""What the bus has to reach, and whether a report reaches it.

The numbers of DorkOS were measured on the same class of machine (Node 20, two cores, 256 bytes); they are shown
beside ours, and nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posthouse.bench.requirement import Requirement

DORKOS = {
    "one_by_one_per_s": 309,
    "in_flight_64_per_s": 556,
    "publish_to_handler_p50_ms": 2.6,
    "fan_out_deliveries_per_s": [464, 623],
    "rebuild_files_per_s": 1_404,
    "match_10000_us": 5_400,
}


REQUIRED = (
    Requirement("one by one, of the floor", "throughput", "one_by_one_ratio", "at least", 0.12, 0.25),
    Requirement("64 in flight, of the floor", "throughput", "in_flight_64_ratio", "at least", 0.25, 0.35),
    Requirement("publish to handler, one process, p50 ms", "latency", "one_process_p50_ms", "at most", 1.0),
    Requirement("publish to handler, across processes, p50 ms", "latency", "across_processes_p50_ms", "at most", 5.0),
    Requirement("fan-out to 50, of the floor", "fan_out", "ratio", "at least", 0.3),
    Requirement("publish with 10,000 waiting, of an empty mailbox", "waiting", "ratio", "at least", 0.8),
    Requirement("rebuild, of bare reading and parsing", "rebuild", "ratio", "at least", 0.3),
    Requirement("matching 10,000 subscriptions, of 100", "matching", "ratio", "at most", 3.0),
    Requirement("memory growth over the publishes, MiB", "memory", "growth_mib", "at most", 8.0),
)

Judge = Callable[[dict[str, Any]], list[dict[str, Any]]]


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with what was measured."""
    return [requirement.judge(report) for requirement in REQUIRED]
