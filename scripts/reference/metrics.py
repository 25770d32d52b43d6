"""The page of metrics, from the registries of the servers and of the pipeline.

A registry is `METRICS`, values with `name`, `kind`, `labels` (a tuple) and `help`.
"""

from __future__ import annotations

from posthouse.daemon.metrics import METRICS as DAEMON_METRICS
from posthouse.model.metric import Metric
from posthouse.model.metrics import METRICS as RELAY_METRICS
from posthouse.pipeline.run.run_metrics import METRICS as PIPELINE_METRICS
from scripts.reference.markdown import code, table


def declared() -> list[Metric]:
    """Return every declared metric by name."""
    return sorted((*RELAY_METRICS, *DAEMON_METRICS, *PIPELINE_METRICS), key=lambda metric: metric.name)


def render() -> str | None:
    """Return the body of the page."""
    rows = [(code(m.name), m.kind, ", ".join(map(code, m.labels)), m.help) for m in declared()]
    return table(("metric", "kind", "labels", "meaning"), rows)
