"""Which gauge is read from where: the one place that connects the metrics with the parts of a relay."""

from __future__ import annotations

from functools import partial

from posthouse.relay.deliver.watch import watch_queues
from posthouse.relay.edge import Edge
from posthouse.relay.http.protocol import Server
from posthouse.relay.http.serve import Service


def watch(edge: Edge, server: Server, service: Service) -> None:
    """Let the metrics of this relay be read when they are shown."""
    meters, live = edge.meters, edge.live
    meters.watch("posthouse_relay_requests_running", lambda: service.running)
    meters.watch("posthouse_relay_connections", lambda: server.open)
    meters.watch("posthouse_relay_streams", lambda: len(edge.connections))
    meters.watch("posthouse_relay_subscriptions", lambda: len(live))
    meters.watch("posthouse_relay_live_events_total", lambda: live.offered)
    meters.watch("posthouse_relay_live_matches_total", lambda: live.comparisons)
    meters.watch("posthouse_relay_live_deliveries_total", lambda: live.delivered)
    meters.watch("posthouse_relay_lock_waiters", lambda: edge.core.locks.waiters)
    edge.core.locks.tell(meters)
    watch_queues(edge)
    if (pinch := edge.pinch) is not None:
        meters.watch("posthouse_relay_pinch_connections", lambda: len(pinch))
    meters.watch("posthouse_relay_tokens", lambda: len(edge.tokens))
    meters.watch("posthouse_relay_journal_head", lambda: live.head)
    for metric, name in _STORE.items():
        meters.watch(metric, partial(_read_store, edge, name))


def _read_store(edge: Edge, name: str) -> float:
    return float(edge.core.store.statistics()[name])


#: metric -> key of the core's statistics
_STORE = {
    "posthouse_relay_writer_waiting_items": "waiting_items",
    "posthouse_relay_writer_waiting_bytes": "waiting_bytes",
    "posthouse_relay_commits_total": "batches",
    "posthouse_relay_committed_items_total": "committed_items",
    "posthouse_relay_wal_bytes": "wal_bytes",
}
