"""The declaration of one metric, and its values in the Prometheus text format.

Servers and runs count plain numbers; they become text when they are asked for. The registries are in model.metrics, for
the relay, and beside what the daemon and the pipeline count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: of the text format
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: the values of one metric by their labels; without labels there is one value
Values = Mapping[tuple[str, ...], float]
_TEXT = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL = _TEXT | str.maketrans({'"': r"\""})


@dataclass(frozen=True, slots=True)
class Metric:
    """The name, kind (counter, gauge or histogram), labels and meaning of one metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    #: upper bounds of a histogram
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """How many values fell into each bucket of a histogram, the one without a bound last, and their sum."""

    counts: Sequence[int]
    sum: float


def render_metrics(metrics: Iterable[Metric], read: Callable[[Metric], Values | HistogramValue]) -> str:
    """Return metrics with the values that `read` finds for each."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help.translate(_TEXT)}", f"# TYPE {metric.name} {metric.kind}"]
        found = read(metric)
        if isinstance(found, HistogramValue):
            lines += _histogram(metric, found)
        else:
            lines += [_sample(metric.name, metric.labels, labels, value) for labels, value in found.items()]
    return "\n".join(lines) + "\n"


def _histogram(metric: Metric, found: HistogramValue) -> list[str]:
    """Return the samples of a histogram: each bucket counts those below it too."""
    lines: list[str] = []
    total = 0
    for bound, count in zip((*metric.buckets, math.inf), found.counts, strict=True):
        total += count
        lines.append(_sample(f"{metric.name}_bucket", ("le",), (_number(bound),), total))
    lines.append(_sample(f"{metric.name}_count", (), (), total))
    lines.append(_sample(f"{metric.name}_sum", (), (), found.sum))
    return lines


def _sample(name: str, names: Sequence[str], labels: Sequence[str], value: float) -> str:
    named = ",".join(f'{each}="{label.translate(_LABEL)}"' for each, label in sorted(zip(names, labels, strict=True)))
    return f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
