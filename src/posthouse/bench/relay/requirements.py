"""What the relay has to reach, and whether a report reaches it."""

from __future__ import annotations

from typing import Any

from posthouse.bench.requirement import Requirement

REQUIRED = (
    Requirement("64 in flight, of two cores that verify", "in_flight_64", "ratio", "at least", 0.2, 0.35),
    Requirement("one at a time, of the rows committed bare", "one_at_a_time", "ratio", "at least", 0.35),
    Requirement("fan-out to 100, deliveries/s", "fan_out", "deliveries_per_s", "at least", 100_000),
    Requirement("stored query of 500 events, p50 ms", "query", "p50_ms", "at most", 10),
    Requirement("ingest into the large store, of an empty one", "large_store", "ratio", "at least", 0.8),
)


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with what was measured."""
    return [requirement.judge(report) for requirement in REQUIRED]
