"""The metrics of a daemon: declared here, counted as plain numbers on the event loop, rendered on request.

Labels have few, known values; never a node, a topic or an id. Gauges are read when the metrics are rendered.
"""

from __future__ import annotations

from collections.abc import Mapping

from posthouse.model.metric import Metric, Values, render_metrics

METRICS: tuple[Metric, ...] = (
    Metric("posthouse_daemon_requests_total", "counter", "Requests answered.", ("route", "status")),
    Metric(
        "posthouse_daemon_requests_refused_total", "counter", "Requests refused before they reached a route.", ("code",)
    ),
    Metric("posthouse_daemon_sends_total", "counter", "Send requests, by the status of the answer.", ("status",)),
    Metric("posthouse_daemon_outbox_sent_total", "counter", "Outbox rows that the relay has accepted."),
    Metric("posthouse_daemon_outbox_dead_total", "counter", "Outbox rows given up, by error code.", ("code",)),
    Metric("posthouse_daemon_inbox_received_total", "counter", "New messages stored in the inbox."),
    Metric("posthouse_daemon_events_total", "counter", "Events sent to event streams.", ("event",)),
    Metric("posthouse_daemon_outbox_pending", "gauge", "Pending outbox rows."),
    Metric("posthouse_daemon_outbox_inflight", "gauge", "Outbox rows in flight."),
    Metric("posthouse_daemon_outbox_bytes", "gauge", "Bytes of events in the outbox."),
    Metric("posthouse_daemon_outbox_lag_seconds", "gauge", "Age of the oldest pending row."),
    Metric("posthouse_daemon_connected", "gauge", "Meshes with a connection to their relay."),
    Metric("posthouse_daemon_streams", "gauge", "Event streams open now."),
    Metric("posthouse_daemon_requests_running", "gauge", "Requests being answered now."),
    Metric("posthouse_daemon_outbox_wal_bytes", "gauge", "Size of the outbox's write-ahead log."),
    Metric("posthouse_daemon_inbox_wal_bytes", "gauge", "Size of the inbox's write-ahead log."),
)


class Meters:
    """The counters of one daemon."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, ...], int]] = {m.name: {} for m in METRICS if m.kind == "counter"}

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        counts = self._counts[name]
        counts[labels] = counts.get(labels, 0) + by

    def counted(self, name: str, *labels: str) -> int:
        """Return the value of a counter."""
        return self._counts[name].get(labels, 0)

    def render(self, gauges: Mapping[str, float]) -> bytes:
        """Return all metrics in the Prometheus text format; `gauges` are the current values."""

        def read(metric: Metric) -> Values:
            if metric.kind == "gauge":
                return {(): gauges.get(metric.name, 0.0)}
            counts = self._counts[metric.name]
            return counts if counts or metric.labels else {(): 0}

        return render_metrics(METRICS, read).encode()
