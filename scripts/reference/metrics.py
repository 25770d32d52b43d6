"""The page of metrics, from posthouse.model.metrics once a server declares some.

The registry is `METRICS`, values with `name`, `kind`, `labels` (a tuple) and `help`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from scripts.reference.markdown import code, table

REGISTRY = "posthouse.model.metrics"


def declared() -> list[Any]:
    """Return every declared metric by name; none while no server declares any."""
    if find_spec(REGISTRY) is None:
        return []
    return sorted(import_module(REGISTRY).METRICS, key=lambda metric: str(metric.name))


def render() -> str | None:
    """Return the body of the page, or None while nothing is measured."""
    metrics = declared()
    if not metrics:
        return None
    rows = [(code(m.name), m.kind, ", ".join(map(code, m.labels)), m.help) for m in metrics]
    return table(("metric", "kind", "labels", "meaning"), rows)
