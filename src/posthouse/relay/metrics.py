"""The relay's metrics: plain numbers counted on the event loop, rendered for Prometheus on request.

Counting is one dictionary update without a lock, because only the event loop's thread counts. Gauges are read when
they are rendered. Only metrics that posthouse.model.metrics declares can be counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from posthouse.model.metric import HistogramValue, Metric, Values, render_metrics
from posthouse.model.metrics import METRICS


class MetricsObserver(Protocol):
    """Counts and measures under names that posthouse.model.metrics declares."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Add one value to a histogram."""
        ...


class NullObserver:
    """Counts nothing."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Do nothing."""

    def observe(self, name: str, value: float) -> None:
        """Do nothing."""


_DECLARED = {metric.name: metric for metric in METRICS}
#: Returns the values of a gauge, or of a counter kept elsewhere, by their labels.
ReadLabelled = Callable[[], Values]
#: labels -> value
Counter = defaultdict[tuple[str, ...], float]


class Meters:
    """The metrics of one relay."""

    def __init__(self) -> None:
        counters = [metric.name for metric in METRICS if metric.kind == "counter"]
        self._counts: dict[str, Counter] = {name: defaultdict(int) for name in counters}
        self._histograms = {m.name: _Histogram(m.buckets) for m in METRICS if m.kind == "histogram"}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._labelled: dict[str, ReadLabelled] = {}
        self._readers: dict[str, Callable[[], float]] = {}

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        self._counts[name][labels] += by

    def counter(self, name: str) -> Counter:
        """Return a counter, by its labels, to increment in place; for the hot path of every event."""
        return self._counts[name]

    def counted(self, name: str, *labels: str) -> int:
        """Return the value of a counter."""
        return int(self._counts[name].get(labels, 0))

    def observe(self, name: str, value: float) -> None:
        """Add one value to a histogram."""
        self._histograms[name].add(value)

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Call `read` for the value of a gauge, or of a counter kept elsewhere, whenever metrics are rendered."""
        if _DECLARED[name].kind == "gauge":
            self._gauges[name] = read
        else:
            self._readers[name] = read

    def watch_labelled(self, name: str, read: ReadLabelled) -> None:
        """Do the same for the values by their labels."""
        self._labelled[name] = read

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return render_metrics(METRICS, self._read).encode()

    def _read(self, metric: Metric) -> Values | HistogramValue:
        name = metric.name
        if metric.kind == "histogram":
            return self._histograms[name].value
        if (read_one := self._gauges.get(name) or self._readers.get(name)) is not None:
            return {(): read_one()}
        if (read_labelled := self._labelled.get(name)) is not None:
            return read_labelled()
        if metric.kind == "gauge":
            return {}
        return self._counts[name] if metric.labels else {(): self._counts[name].get((), 0)}


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def value(self) -> HistogramValue:
        return HistogramValue(self._counts, self._sum)
