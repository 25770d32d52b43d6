"""The gauges of a running relay: each is connected to the part that knows its value."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from posthouse.http.server import HttpServer
from posthouse.model.limits import SECOND_NS
from posthouse.model.metrics import MESHES_SHOWN
from posthouse.relay.context import RelayContext

#: metric -> key of the store's statistics
_STORE = {
    "posthouse_relay_writer_waiting_items": "waiting_items",
    "posthouse_relay_writer_waiting_bytes": "waiting_bytes",
    "posthouse_relay_commits_total": "batches",
    "posthouse_relay_committed_items_total": "committed_items",
    "posthouse_relay_wal_bytes": "wal_bytes",
}


def watch_metrics(context: RelayContext, server: HttpServer) -> None:
    """Connect the gauges to their sources."""
    meters, live, directory = context.meters, context.live, context.engine.settings.data_dir
    meters.watch("posthouse_relay_requests_running", lambda: server.dispatcher.slots.running)
    meters.watch("posthouse_relay_connections", lambda: server.open)
    meters.watch("posthouse_relay_outbound_bytes", context.outbound.measure)
    meters.watch("posthouse_relay_readers_dropped_total", lambda: context.outbound.dropped)
    meters.watch("posthouse_relay_reads_waiting", lambda: context.reads)
    meters.watch("posthouse_relay_streams", lambda: len(context.connections) + len(context.event_streams))
    meters.watch("posthouse_relay_subscriptions", lambda: len(live))
    meters.watch("posthouse_relay_live_events_total", lambda: live.offered)
    meters.watch("posthouse_relay_live_matches_total", lambda: live.comparisons)
    meters.watch("posthouse_relay_live_deliveries_total", lambda: live.delivered)
    meters.watch("posthouse_relay_lock_waiters", lambda: context.engine.locks.waiters)
    context.engine.locks.observe_with(meters)
    watch_queues(context)
    watch_followers(context)
    watch_webhooks(context)
    context.engine.retention.observe_with(meters)
    watch_upkeep(context)
    meters.watch("posthouse_relay_journal_head", lambda: live.head)
    meters.watch("posthouse_relay_damaged_pages_total", lambda: context.engine.damage)
    meters.watch_labelled("posthouse_relay_events_accepted_total", lambda: _labelled(context.engine.accepted))
    meters.watch_labelled("posthouse_relay_events_refused_total", lambda: _labelled(context.engine.refused))
    context.engine.committer.observer = meters
    meters.watch("posthouse_relay_store_bytes", partial(_files_bytes, directory))
    meters.watch("posthouse_relay_disk_free_bytes", lambda: shutil.disk_usage(directory).free)
    for metric, name in _STORE.items():
        meters.watch(metric, partial(_read_store, context, name))


def _labelled(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Return counts by their only label; a count appears once it is above 0."""
    return {(label,): count for label, count in counts.items() if count}


def _files_bytes(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # the write-ahead log may be deleted at any time
            total += path.stat().st_size if path.is_file() else 0
    return total


def _read_store(context: RelayContext, name: str) -> float:
    return float(context.engine.store.statistics()[name])


def watch_webhooks(context: RelayContext) -> None:
    """Connect the gauges of requests and webhooks to their sources."""
    meters, engine = context.meters, context.engine
    meters.watch("posthouse_relay_open_requests", lambda: len(engine.requests))
    meters.watch("posthouse_relay_webhooks", lambda: engine.dispatcher.serving)
    meters.watch("posthouse_relay_webhook_lag_seconds", lambda: engine.dispatcher.lag_s)
    engine.dispatcher.observer = meters


def watch_followers(context: RelayContext) -> None:
    """Connect the gauges of followers to their source."""
    meters, followers = context.meters, context.engine.followers
    meters.watch("posthouse_relay_followers", lambda: followers.count)
    meters.watch("posthouse_relay_follower_lag_seconds", lambda: followers.lag_s)
    meters.watch("posthouse_relay_follower_lag_records", lambda: followers.lag_records)


def watch_queues(context: RelayContext) -> None:
    """Connect the gauges of queues to their sources."""
    meters, engine = context.meters, context.engine
    sessions, sweeper = engine.sessions, engine.sweeper
    meters.watch("posthouse_relay_mailboxes", lambda: sessions.statistics()["open"])
    meters.watch("posthouse_relay_messages_in_flight", lambda: sessions.statistics()["in_flight"])
    meters.watch("posthouse_relay_queued_messages", lambda: sweeper.totals.open_rows)
    meters.watch("posthouse_relay_parked_messages", lambda: sweeper.totals.parked_rows)
    meters.watch("posthouse_relay_waiting_confirmation_ids", lambda: sweeper.totals.confirmation_ids)
    meters.watch("posthouse_relay_queue_oldest_seconds", partial(_oldest_s, context))
    meters.watch_labelled("posthouse_relay_mesh_queued_messages", partial(_deepest, context))
    meters.watch_labelled("posthouse_relay_mesh_queue_oldest_seconds", partial(_longest_waiting, context))
    meters.watch_labelled("posthouse_relay_deliveries_total", lambda: _labelled(sessions.sent))
    meters.watch_labelled("posthouse_relay_deliveries_closed_total", lambda: _labelled(sessions.closed))
    sessions.observer = meters


def _deepest(context: RelayContext) -> dict[tuple[str, ...], float]:
    return {(each.mesh,): each.open_rows for each in context.engine.sweeper.totals.deepest(MESHES_SHOWN)}


def _longest_waiting(context: RelayContext) -> dict[tuple[str, ...], float]:
    totals = context.engine.sweeper.totals
    return {(mesh,): _age_s(context, opened_ns) for mesh, opened_ns in totals.longest_waiting(MESHES_SHOWN)}


def _oldest_s(context: RelayContext) -> float:
    oldest_ns = context.engine.sweeper.totals.oldest_ns
    return 0.0 if oldest_ns is None else _age_s(context, oldest_ns)


def _age_s(context: RelayContext, at_ns: int) -> float:
    return max(0.0, (context.clock.wall_ns() - at_ns) / SECOND_NS)


def watch_upkeep(context: RelayContext) -> None:
    """Connect the gauges of sweepers and of the cluster to their sources."""
    meters, engine = context.meters, context.engine
    meters.watch_labelled("posthouse_relay_sweep_age_seconds", partial(_sweep_ages, context))
    meters.watch("posthouse_relay_leader", lambda: engine.charge.is_here)
    meters.watch("posthouse_relay_cluster_relays", lambda: 1 if engine.cluster is None else engine.cluster.alive)


def _sweep_ages(context: RelayContext) -> dict[tuple[str, ...], float]:
    engine = context.engine
    if not engine.charge.is_here:
        return {}
    finished_ns = {"queues": engine.sweeper.finished_ns, "retention": engine.retention.finished_ns}
    now_ns = context.clock.boot_ns()
    return {(name,): (now_ns - at_ns) / SECOND_NS for name, at_ns in finished_ns.items()}
