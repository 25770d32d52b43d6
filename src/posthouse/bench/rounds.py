"""Comparing two ways to do the same work on a noisy machine.

Ours and the bare way take turns in every round, so that whatever else the machine does hits both; what counts is
the median of the rounds' ratios. Absolute rates are told too, but mean little on another machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

#: Does the work once and returns how many per second.
Measure = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """What the rounds of one comparison showed."""

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
        """Return the comparison as it is written to JSON."""
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
    """Let both ways take turns for `rounds` rounds, after one that warms up and does not count."""
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
