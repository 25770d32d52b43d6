"""The relay's metrics: plain numbers counted on the event loop, rendered for Prometheus on request.

Counting is one dictionary update without a lock, because only the event loop's thread counts. Gauges are read when
they are rendered. Only metrics that posthouse.model.metrics declares can be counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from posthouse.model.metrics import METRICS, Metric


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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DECLARED = {metric.name: metric for metric in METRICS}
#: Returns the values of a gauge, or of a counter kept elsewhere, by their labels.
ReadLabelled = Callable[[], Mapping[tuple[str, ...], float]]
#: labels -> value
Counter = defaultdict[tuple[str, ...], float]


class Meters(Collector):
    """The metrics of one relay."""

    def __init__(self) -> None:
        counters = [metric.name for metric in METRICS if metric.kind == "counter"]
        self._counts: dict[str, Counter] = {name: defaultdict(int) for name in counters}
        self._histograms = {m.name: _Histogram(m.buckets) for m in METRICS if m.kind == "histogram"}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._labelled: dict[str, ReadLabelled] = {}
        self._readers: dict[str, Callable[[], float]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

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
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield self._family(metric)

    def _family(self, metric: Metric) -> Family:
        if metric.kind == "histogram":
            return self._histograms[metric.name].family(metric)
        if metric.kind == "gauge":
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=list(metric.labels))
            if metric.name in self._gauges:
                gauge.add_metric([], self._gauges[metric.name]())
            elif metric.name in self._labelled:
                for labels, value in self._labelled[metric.name]().items():
                    gauge.add_metric(list(labels), value)
            return gauge
        counter = CounterMetricFamily(metric.name, metric.help, labels=list(metric.labels))
        if metric.name in self._readers:
            counter.add_metric([], self._readers[metric.name]())
        elif not metric.labels:
            counter.add_metric([], self._counts[metric.name].get((), 0))
        else:
            read = self._labelled.get(metric.name)
            for labels, value in (self._counts[metric.name] if read is None else read()).items():
                counter.add_metric(list(labels), value)
        return counter


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, metric: Metric) -> Family:
        total = 0
        buckets: list[Any] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(metric.name, metric.help)
        family.add_metric([], buckets, self._sum)
        return family
