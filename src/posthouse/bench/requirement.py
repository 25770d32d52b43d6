"""What a measured part has to reach, and whether a report reaches it."""

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
