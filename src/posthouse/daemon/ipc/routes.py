"""The routes of the local API, and the handlers of version, health and metrics.

If you add a route: 1. here, 2. DaemonClient, 3. docs/reference.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.daemon.context import LocalCall
from posthouse.daemon.directory import SCHEMA_VERSION
from posthouse.daemon.ipc import (
    agent_routes,
    history_routes,
    hook_routes,
    inbox_routes,
    mesh_routes,
    outbox_routes,
    reservation_routes,
)
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.metrics import CONTENT_TYPE
from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.journal.store import Store
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
    "meshes",
    "reservations",
)


async def show_version(call: LocalCall) -> HttpResponse:
    """Return the version and features of this daemon."""
    return json_response({"version": __version__, "ipc_api": IPC_API, "features": FEATURES, "schema": SCHEMA_VERSION})


async def show_health(call: LocalCall) -> HttpResponse:
    """Return the state of the daemon."""
    return json_response(await read_health(call))


async def list_meshes(call: LocalCall) -> HttpResponse:
    """Return every mesh of this daemon with its state."""
    return json_response({"items": call.context.meshes.states()})


class _MeshBody(msgspec.Struct, forbid_unknown_fields=True):
    mesh: str
    relay: str | None = None


async def add_mesh(call: LocalCall) -> HttpResponse:
    """Serve one more mesh, or try again one that has failed."""
    body = await call.body(_MeshBody)
    await call.context.meshes.add(body.mesh, body.relay)
    return json_response(await read_health(call))


async def remove_mesh(call: LocalCall) -> HttpResponse:
    """Stop serving a mesh; its files stay."""
    await call.context.meshes.remove(call.params["mesh"])
    return json_response({"mesh": call.params["mesh"]})


async def show_metrics(call: LocalCall) -> HttpResponse:
    """Return the metrics in the Prometheus text format."""
    context, nodes = call.context, call.meshes
    depths = [await node.outbox.depth() for node in nodes]
    lag_ns = max([await _lag_ns(call, node) for node in nodes], default=0)
    gauges = {
        "posthouse_daemon_outbox_pending": sum(depth.pending for depth in depths),
        "posthouse_daemon_outbox_inflight": sum(depth.inflight for depth in depths),
        "posthouse_daemon_outbox_bytes": sum(depth.bytes for depth in depths),
        "posthouse_daemon_outbox_lag_seconds": lag_ns / SECOND_NS,
        "posthouse_daemon_connected": sum(node.uplink.is_up for node in nodes),
        "posthouse_daemon_streams": context.streams.count,
        "posthouse_daemon_requests_running": call.slots.running,
        "posthouse_daemon_outbox_wal_bytes": sum(wal_bytes(node.outbox.store) for node in nodes),
        "posthouse_daemon_inbox_wal_bytes": sum(wal_bytes(node.inbox.store) for node in nodes),
    }
    return HttpResponse(200, context.meters.render(gauges), CONTENT_TYPE)


def wal_bytes(store: Store) -> int:
    """Return the size of a store's write-ahead log."""
    return int(store.statistics().get("wal_bytes", 0))


async def read_health(call: LocalCall) -> dict[str, Any]:
    """Return the fields of /v1/health: those of the request's mesh, and the states of all."""
    context, node = call.context, call.mesh
    depth = await node.outbox.depth()
    stores = {"outbox": node.outbox.store, "inbox": node.inbox.store, "agents": context.agents.store}
    states = {f"{name}_state": store.writer.state for name, store in stores.items()}
    return {
        "writable": all(state == "open" for state in states.values()),
        "connected": node.uplink.is_up,
        "admitted": node.uplink.is_up and node.uplink.is_admitted,
        "relay_error": None if node.uplink.connect_error is None else str(node.uplink.connect_error),
        "clock_difference_s": _rounded(node.uplink.clock_watch.difference_s),
        "clock_trusted": node.uplink.trusts_clock,
        "lag_ms": await _lag_ns(call, node) // MILLISECOND_NS,
        "queue_depth": depth.pending,
        "inflight": depth.inflight,
        "mesh": node.mesh,
        "member": node.roster.name_of(node.key.node),
        "node": node.key.node,
        "relay": node.settings.relay,
        "is_ephemeral": node.settings.is_ephemeral,
        "uptime_s": (context.clock.boot_ns() - context.started_ns) // SECOND_NS,
        "meshes": context.meshes.states(),
    } | states


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


async def _lag_ns(call: LocalCall, node: MeshNode) -> int:
    oldest_ns = await node.outbox.oldest_pending_ns()
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
    Route("POST", "/v1/messages/withdraw", outbox_routes.withdraw_message),
    Route("GET", "/v1/messages/{id}", mesh_routes.show_message),
    Route("GET", "/v1/history", history_routes.show_history),
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
    Route("POST", "/v1/agents/on-mail", hook_routes.set_on_mail),
    Route("POST", "/v1/reservations", reservation_routes.reserve_paths),
    Route("GET", "/v1/reservations", reservation_routes.list_reservations),
    Route("DELETE", "/v1/reservations", reservation_routes.release_paths),
    Route("GET", "/v1/peers", mesh_routes.list_peers),
    Route("POST", "/v1/profile", mesh_routes.update_profile),
    Route("POST", "/v1/hooks/{program}/{event}", hook_routes.run_hook),
    Route("GET", "/v1/meshes", list_meshes),
    Route("POST", "/v1/meshes", add_mesh),
    Route("DELETE", "/v1/meshes/{mesh}", remove_mesh),
    Route("GET", "/v1/version", show_version),
    Route("GET", "/v1/health", show_health),
    Route("GET", "/v1/metrics", show_metrics),
    Route("POST", "/v1/mcp", hook_routes.serve_program, may_wait=True),
    Route("POST", MCP_PATH, post_message, may_wait=True),
    Route("DELETE", MCP_PATH, delete_session),
)
