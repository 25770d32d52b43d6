"""The metrics of a run, for Prometheus: a text file that the node exporter reads (its textfile collector).

A run is a process that ends, so nothing can scrape it. It replaces the file when it ends, even if it fails; the file
then says so. The file holds numbers and names of tables, never content, and other users may read it. If you add a
metric:
1. declare it here, 2. set it in `render_run`, 3. `make docs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from posthouse.files import write_atomic
from posthouse.model.limits import SECOND_NS
from posthouse.model.metric import Metric, Values, render_metrics
from posthouse.pipeline.run.copy_feeds import RunStep

METRICS: tuple[Metric, ...] = (
    Metric("posthouse_pipeline_run_successful", "gauge", "1 if the last run succeeded, else 0."),
    Metric("posthouse_pipeline_run_end_timestamp_seconds", "gauge", "When the last run ended, in Unix time."),
    Metric("posthouse_pipeline_run_seconds", "gauge", "Duration of the last run, without the start of Spark."),
    Metric("posthouse_pipeline_run_rows", "gauge", "Rows that the last run committed, by table.", ("table",)),
    Metric("posthouse_pipeline_lag_seconds", "gauge", "Age of the oldest copied record when the last run ended."),
    Metric("posthouse_pipeline_table_files", "gauge", "Files of each table after the last run.", ("table",)),
    Metric(
        "posthouse_pipeline_table_bytes", "gauge", "Size of the files of each table after the last run.", ("table",)
    ),
)
_MODE = 0o644  # the exporter runs as another user


@dataclass
class RunFigures:
    """The figures of one run."""

    started_ns: int
    ended_ns: int = 0
    is_successful: bool = False
    steps: list[RunStep] = field(default_factory=list)
    #: Table -> its number of files and their size.
    files: dict[str, tuple[int, int]] = field(default_factory=dict)

    def rows(self) -> dict[str, int]:
        """Return the rows that were committed, by table."""
        found: dict[str, int] = {}
        for step in self.steps:
            if step.step in ("copied", "derived"):
                found[step.table] = found.get(step.table, 0) + step.rows
        return found

    def lag_s(self) -> float:
        """Return how old the oldest copied record was when the run ended; 0 if it copied none."""
        times = [step.fields["oldest_at_ns"] for step in self.steps if step.fields.get("oldest_at_ns")]
        return max(0.0, (self.ended_ns - min(times)) / SECOND_NS) if times else 0.0


def render_run(figures: RunFigures) -> str:
    """Return the metrics of a run in the Prometheus text format."""
    values: dict[str, Values] = {
        "posthouse_pipeline_run_successful": {(): float(figures.is_successful)},
        "posthouse_pipeline_run_end_timestamp_seconds": {(): figures.ended_ns / SECOND_NS},
        "posthouse_pipeline_run_seconds": {(): (figures.ended_ns - figures.started_ns) / SECOND_NS},
        "posthouse_pipeline_run_rows": {(table,): float(rows) for table, rows in figures.rows().items()},
        "posthouse_pipeline_lag_seconds": {(): figures.lag_s()},
        "posthouse_pipeline_table_files": {(table,): float(count) for table, (count, _) in figures.files.items()},
        "posthouse_pipeline_table_bytes": {(table,): float(size) for table, (_, size) in figures.files.items()},
    }
    return render_metrics(METRICS, lambda metric: dict(sorted(values[metric.name].items())))


def write_run_metrics(path: Path, figures: RunFigures) -> None:
    """Replace the metrics file."""
    write_atomic(path, render_run(figures).encode(), mode=_MODE)
