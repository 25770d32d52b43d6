"""What the relay has to reach, and whether a report reaches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Requirement:
    """One number of the report with its bound."""

    name: str
    section: str
    key: str
    #: "at least" or "at most"
    sense: str
    bound: float
    aim: float | None = None

    def judge(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the value, the bound and whether it is met."""
        value = report[self.section][self.key]
        is_met = value >= self.bound if self.sense == "at least" else value <= self.bound
        found = {"name": self.name, "value": value, "sense": self.sense, "bound": self.bound, "met": is_met}
        return found if self.aim is None else found | {"aim": self.aim}


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
