"""Samples of the metrics of daemon and relay over the last hour: rates, histograms and current values.

A counter that decreases means that the process was restarted; the rate of that interval counts from zero.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

KEPT_SAMPLES = 360  # an hour at ten seconds
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_INFINITE = "+Inf"
Labels = tuple[tuple[str, str], ...]
#: (name, labels) -> value
Sample = Mapping[tuple[str, Labels], float]


def parse_metrics(text: str) -> Sample:
    """Return the values in a text in the Prometheus format; other lines are skipped."""
    values: dict[tuple[str, Labels], float] = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.fullmatch(line)
        if found is not None:
            labels = tuple(sorted((each[1], each[2]) for each in _LABEL.finditer(found[2] or "")))
            values[found[1], labels] = float(found[3])
    return values


@dataclass
class Series:
    """The samples of one process, oldest first."""

    samples: deque[tuple[float, Sample]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))

    @classmethod
    def of(cls, kept: int) -> Series:
        """Return a series that keeps `kept` samples."""
        return cls(deque(maxlen=kept))

    def add(self, at_s: float, text: str) -> None:
        """Add the metrics that a process returned at a time."""
        self.samples.append((at_s, parse_metrics(text)))

    @property
    def newest(self) -> Sample:
        """The newest values; empty before the first sample."""
        return self.samples[-1][1] if self.samples else {}

    def value(self, name: str) -> float | None:
        """Return the current value of a metric, summed over its labels; None if the process does not have it."""
        found = [value for (each, _labels), value in self.newest.items() if each == name]
        return sum(found) if found else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the current values of a metric by one label, largest first."""
        found: dict[str, float] = {}
        for (each, labels), value in self.newest.items():
            if each == name:
                key = dict(labels).get(label, "")
                found[key] = found.get(key, 0.0) + value
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def rates(self, name: str) -> list[float]:
        """Return the increase of a counter per second, for each interval between samples."""
        totals = [(at_s, _total(sample, name)) for at_s, sample in self.samples]
        rates = []
        for (from_s, before), (to_s, after) in pairwise(totals):
            if to_s > from_s:
                rates.append((after - before if after >= before else after) / (to_s - from_s))
        return rates

    def quantile(self, name: str, part: float) -> float | None:
        """Return the upper bound of a histogram below which a part of its values lies; None without values."""
        buckets = sorted(
            (float(dict(labels)["le"]) if dict(labels)["le"] != _INFINITE else float("inf"), value)
            for (each, labels), value in self.newest.items()
            if each == f"{name}_bucket"
        )
        if not buckets or not buckets[-1][1]:
            return None
        wanted = part * buckets[-1][1]
        return next((bound for bound, count in buckets if count >= wanted), None)


@dataclass
class MetricSamples:
    """The samples of both processes."""

    relay: Series = field(default_factory=Series)
    daemon: Series = field(default_factory=Series)


def _total(sample: Sample, name: str) -> float:
    return sum(value for (each, _labels), value in sample.items() if each == name)
