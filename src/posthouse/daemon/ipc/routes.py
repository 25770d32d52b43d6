"""The routes of the local API, and the handlers of version, health and metrics.

If you add a route: 1. here, 2. DaemonClient, 3. docs/reference.
"""

from __future__ import annotations

from typing import Any

from posthouse.daemon.context import LocalCall
from posthouse.daemon.directory import SCHEMA_VERSION
from posthouse.daemon.ipc import agent_routes, hook_routes, inbox_routes, mesh_routes, outbox_routes
from posthouse.daemon.metrics import CONTENT_TYPE
from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.mcp.line_stream import serve_pipe
from posthouse.mcp.streamable_http import PATH as MCP_PATH
from posthouse.mcp.streamable_http import delete_session, post_message
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.version import __version__

IPC_API = 1
FEATURES = (
    "send",
    "topics",
    "inbox",
    "inbox_wait",
    "outbox",
    "events",
    "history",
    "locks",
    "peers",
    "profile",
    "agents",
    "mcp",
)


async def show_version(call: LocalCall) -> HttpResponse:
    """Return the version and features of this daemon."""
    return json_response({"version": __version__, "ipc_api": IPC_API, "features": FEATURES, "schema": SCHEMA_VERSION})


async def show_health(call: LocalCall) -> HttpResponse:
    """Return the state of the daemon."""
    return json_response(await read_health(call))


async def show_metrics(call: LocalCall) -> HttpResponse:
    """Return the metrics in the Prometheus text format."""
    context = call.context
    depth = await context.outbox.depth()
    gauges = {
        "posthouse_daemon_outbox_pending": depth.pending,
        "posthouse_daemon_outbox_inflight": depth.inflight,
        "posthouse_daemon_outbox_bytes": depth.bytes,
        "posthouse_daemon_outbox_lag_seconds": await _lag_ns(call) / SECOND_NS,
        "posthouse_daemon_connected": float(context.uplink.is_up),
        "posthouse_daemon_streams": context.streams.count,
        "posthouse_daemon_requests_running": call.slots.running,
        "posthouse_daemon_outbox_wal_bytes": context.outbox.store.statistics().get("wal_bytes", 0),
        "posthouse_daemon_inbox_wal_bytes": context.inbox.store.statistics().get("wal_bytes", 0),
    }
    return HttpResponse(200, context.meters.render(gauges), CONTENT_TYPE)


async def read_health(call: LocalCall) -> dict[str, Any]:
    """Return the fields of /v1/health."""
    context = call.context
    depth = await context.outbox.depth()
    stores = {"outbox": context.outbox.store, "inbox": context.inbox.store, "agents": context.agents.store}
    states = {f"{name}_state": store.writer.state for name, store in stores.items()}
    return {
        "writable": all(state == "open" for state in states.values()),
        "connected": context.uplink.is_up,
        "relay_error": None if context.uplink.connect_error is None else str(context.uplink.connect_error),
        "clock_difference_s": _rounded(context.uplink.clock_watch.difference_s),
        "clock_trusted": context.uplink.trusts_clock,
        "lag_ms": await _lag_ns(call) // MILLISECOND_NS,
        "queue_depth": depth.pending,
        "inflight": depth.inflight,
        "mesh": context.settings.mesh,
        "member": context.roster.name_of(context.key.node),
        "node": context.key.node,
        "relay": context.settings.relay,
        "is_ephemeral": context.settings.is_ephemeral,
        "uptime_s": (context.clock.boot_ns() - context.started_ns) // SECOND_NS,
    } | states


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


async def _lag_ns(call: LocalCall) -> int:
    oldest_ns = await call.context.outbox.oldest_pending_ns()
    return 0 if oldest_ns is None else max(0, call.context.clock.wall_ns() - oldest_ns)


ROUTES: tuple[Route[LocalCall], ...] = (
    Route("POST", "/v1/send", outbox_routes.send_message),
    Route("POST", "/v1/topic/create", mesh_routes.create_topic),
    Route("POST", "/v1/topic/post", outbox_routes.post_to_topic),
    Route("POST", "/v1/topic/subscribe", mesh_routes.subscribe_topic),
    Route("POST", "/v1/topic/unsubscribe", mesh_routes.unsubscribe_topic),
    Route("GET", "/v1/topic/list", mesh_routes.list_topics),
    Route("GET", "/v1/inbox", inbox_routes.list_inbox),
    Route("POST", "/v1/inbox/seen", inbox_routes.mark_seen),
    Route("POST", "/v1/inbox/mark", inbox_routes.move_mark),
    Route("GET", "/v1/inbox/{id}", inbox_routes.show_inbox_item),
    Route("GET", "/v1/outbox", outbox_routes.list_outbox),
    Route("POST", "/v1/outbox/requeue", outbox_routes.requeue_outbox_row),
    Route("POST", "/v1/outbox/drop", outbox_routes.drop_outbox_row),
    Route("GET", "/v1/outbox/{id}", outbox_routes.show_outbox_row),
    Route("GET", "/v1/events", inbox_routes.stream_events),
    Route("GET", "/v1/messages/{id}", mesh_routes.show_message),
    Route("GET", "/v1/history", mesh_routes.show_history),
    Route("POST", "/v1/locks/acquire", mesh_routes.acquire_lock),
    Route("POST", "/v1/locks/renew", mesh_routes.renew_lock),
    Route("POST", "/v1/locks/release", mesh_routes.release_lock),
    Route("POST", "/v1/agents", agent_routes.register_agent),
    Route("GET", "/v1/agents", agent_routes.list_agents),
    Route("GET", "/v1/agents/{id}", agent_routes.show_agent),
    Route("POST", "/v1/agents/rename", agent_routes.rename_agent),
    Route("POST", "/v1/agents/retire", agent_routes.retire_agent),
    Route("POST", "/v1/agents/pause", agent_routes.pause_agents),
    Route("POST", "/v1/agents/resume", agent_routes.resume_agents),
    Route("POST", "/v1/agents/on-mail", agent_routes.set_on_mail),
    Route("GET", "/v1/peers", mesh_routes.list_peers),
    Route("POST", "/v1/profile", mesh_routes.update_profile),
    Route("POST", "/v1/hooks/{program}/{event}", hook_routes.run_hook),
    Route("GET", "/v1/version", show_version),
    Route("GET", "/v1/health", show_health),
    Route("GET", "/v1/metrics", show_metrics),
    Route("POST", "/v1/mcp", serve_pipe, may_wait=True),
    Route("POST", MCP_PATH, post_message, may_wait=True),
    Route("DELETE", MCP_PATH, delete_session),
)
