"""The routes of the local interface, with version, health and metrics.

If you add a route: 1. here, 2. DaemonClient, 3. docs/reference.
"""

from __future__ import annotations

from typing import Any

from posthouse.daemon.directory import SCHEMA_VERSION
from posthouse.daemon.ipc import inbox_routes, mesh_routes, outbox_routes
from posthouse.daemon.ipc.dispatch import Call, Route, Table
from posthouse.daemon.metrics import CONTENT_TYPE
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.version import __version__

IPC_API = 1
FEATURES = ("send", "topics", "inbox", "inbox_wait", "outbox", "events", "history", "locks", "peers", "profile")


async def show_version(call: Call) -> HttpResponse:
    """Return what speaks here."""
    return json_response({"version": __version__, "ipc_api": IPC_API, "features": FEATURES, "schema": SCHEMA_VERSION})


async def show_health(call: Call) -> HttpResponse:
    """Return how the daemon is doing."""
    return json_response(await read_health(call))


async def show_metrics(call: Call) -> HttpResponse:
    """Return the metrics in Prometheus' text form."""
    daemon, service = call.daemon, call.service
    depth = await daemon.outbox.depth()
    gauges = {
        "posthouse_daemon_outbox_pending": depth.pending,
        "posthouse_daemon_outbox_inflight": depth.inflight,
        "posthouse_daemon_outbox_bytes": depth.bytes,
        "posthouse_daemon_outbox_lag_seconds": await _lag_ns(call) / SECOND_NS,
        "posthouse_daemon_connected": float(daemon.uplink.is_up),
        "posthouse_daemon_streams": service.streams,
        "posthouse_daemon_requests_running": service.running,
        "posthouse_daemon_outbox_wal_bytes": daemon.outbox.store.statistics().get("wal_bytes", 0),
        "posthouse_daemon_inbox_wal_bytes": daemon.inbox.store.statistics().get("wal_bytes", 0),
    }
    return HttpResponse(200, daemon.meters.render(gauges), CONTENT_TYPE)


async def read_health(call: Call) -> dict[str, Any]:
    """Return the fields of /v1/health."""
    daemon = call.daemon
    depth = await daemon.outbox.depth()
    return {
        "connected": daemon.uplink.is_up,
        "lag_ms": await _lag_ns(call) // MILLISECOND_NS,
        "queue_depth": depth.pending,
        "inflight": depth.inflight,
        "mesh": daemon.settings.mesh,
        "member": daemon.roster.name_of(daemon.key.node),
        "node": daemon.key.node,
        "relay": daemon.settings.relay,
        "is_ephemeral": daemon.settings.is_ephemeral,
        "uptime_s": (daemon.clock.boot_ns() - daemon.started_ns) // SECOND_NS,
        "outbox_state": daemon.outbox.store.writer.state,
        "inbox_state": daemon.inbox.store.writer.state,
    }


async def _lag_ns(call: Call) -> int:
    oldest_ns = await call.daemon.outbox.oldest_pending_ns()
    return 0 if oldest_ns is None else max(0, call.daemon.clock.wall_ns() - oldest_ns)


ROUTES: Table = {
    "/v1/send": {"POST": Route(outbox_routes.send_message)},
    "/v1/topic/create": {"POST": Route(mesh_routes.create_topic)},
    "/v1/topic/post": {"POST": Route(outbox_routes.post_to_topic)},
    "/v1/topic/subscribe": {"POST": Route(mesh_routes.subscribe_topic)},
    "/v1/topic/unsubscribe": {"POST": Route(mesh_routes.unsubscribe_topic)},
    "/v1/topic/list": {"GET": Route(mesh_routes.list_topics)},
    "/v1/inbox": {"GET": Route(inbox_routes.list_inbox)},
    "/v1/inbox/seen": {"POST": Route(inbox_routes.mark_seen)},
    "/v1/inbox/{id}": {"GET": Route(inbox_routes.show_inbox_item)},
    "/v1/outbox": {"GET": Route(outbox_routes.list_outbox)},
    "/v1/outbox/requeue": {"POST": Route(outbox_routes.requeue_outbox_row)},
    "/v1/outbox/drop": {"POST": Route(outbox_routes.drop_outbox_row)},
    "/v1/outbox/{id}": {"GET": Route(outbox_routes.show_outbox_row)},
    "/v1/events": {"GET": Route(inbox_routes.stream_events)},
    "/v1/messages/{id}": {"GET": Route(mesh_routes.show_message)},
    "/v1/history": {"GET": Route(mesh_routes.show_history)},
    "/v1/locks/acquire": {"POST": Route(mesh_routes.acquire_lock)},
    "/v1/locks/renew": {"POST": Route(mesh_routes.renew_lock)},
    "/v1/locks/release": {"POST": Route(mesh_routes.release_lock)},
    "/v1/peers": {"GET": Route(mesh_routes.list_peers)},
    "/v1/profile": {"POST": Route(mesh_routes.update_profile)},
    "/v1/version": {"GET": Route(show_version)},
    "/v1/health": {"GET": Route(show_health)},
    "/v1/metrics": {"GET": Route(show_metrics)},
}
