"""Comparing two ways to do the same work on a noisy machine, and the bound that a figure has to meet.

Ours and the bare way alternate in every round, so that whatever else the machine does affects both; the result is
the median of the rounds' ratios. Absolute rates are reported too, but mean little on another machine.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def median(values: Sequence[float]) -> float:
    """Return the median: one disturbed round hardly moves it."""
    return statistics.median(values)


def median_ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Return the median of the rounds' ratios: other load on the machine affects both sides of a round."""
    return round(statistics.median(mine / other for mine, other in zip(ours, bare, strict=True)), 3)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def describe_machine() -> dict[str, Any]:
    """Return the properties of this machine that every report has."""
    return {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))}


#: Does the work once and returns its rate per second.
Measure = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """The rates of all rounds of one comparison."""

    name: str
    ours_per_s: list[float]
    bare_per_s: list[float]
    required: float
    aim: float

    @property
    def ratio(self) -> float:
        """Return the median of ours / bare over the rounds."""
        return statistics.median(ours / bare for ours, bare in zip(self.ours_per_s, self.bare_per_s, strict=True))

    def value(self) -> dict[str, object]:
        """Return the comparison as JSON values."""
        ratios = [ours / bare for ours, bare in zip(self.ours_per_s, self.bare_per_s, strict=True)]
        return {
            "ratio": round(self.ratio, 3),
            "required": self.required,
            "aim": self.aim,
            "ours_per_s": round(statistics.median(self.ours_per_s)),
            "bare_per_s": round(statistics.median(self.bare_per_s)),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }


def compare(name: str, ours: Measure, bare: Measure, *, rounds: int, required: float, aim: float) -> Comparison:
    """Alternate both ways for `rounds` rounds, after one warm-up round that does not count."""
    ours(), bare()
    ours_per_s: list[float] = []
    bare_per_s: list[float] = []
    for number in range(rounds):
        if number % 2:
            bare_per_s.append(bare())
            ours_per_s.append(ours())
        else:
            ours_per_s.append(ours())
            bare_per_s.append(bare())
    return Comparison(name, ours_per_s, bare_per_s, required, aim)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One figure of the report with its bound."""

    name: str
    section: str
    key: str
    #: "at least" or "at most"
    comparison: str
    bound: float
    aim: float | None = None

    def evaluate(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the value, the bound and whether the bound is met."""
        value = report[self.section][self.key]
        is_met = value >= self.bound if self.comparison == "at least" else value <= self.bound
        found = {"name": self.name, "value": value, "sense": self.comparison, "bound": self.bound, "met": is_met}
        return found if self.aim is None else found | {"aim": self.aim}
