"""The routes of the local API, and the handlers of version, health and metrics.

If you add a route: 1. here, with the types of its request and response, 2. DaemonClient, 3. run
`python -m posthouse.daemon.ipc.openapi > docs/openapi-daemon.json`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.client.daemon.local_api import (
    Accepted,
    Agent,
    Answers,
    DaemonVersion,
    Health,
    InboxItem,
    RequeuedRow,
    Thread,
    Traffic,
)
from posthouse.client.daemon.locate import MESH_HEADER
from posthouse.daemon.context import LocalCall
from posthouse.daemon.directory import SCHEMA_VERSION
from posthouse.daemon.ipc import (
    agent_routes,
    history_routes,
    hook_routes,
    inbox_routes,
    mesh_routes,
    outbox_routes,
    request_routes,
    reservation_routes,
)
from posthouse.daemon.ipc import response_types as types
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.request_fields import MeshName
from posthouse.daemon.send import SendRequest
from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.journal.store import Store
from posthouse.mcp.streamable_http import PATH as MCP_PATH
from posthouse.mcp.streamable_http import delete_session, post_message
from posthouse.model.address import AGENT_HEADER
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.model.lock_api import LockGrant
from posthouse.model.metric import CONTENT_TYPE
from posthouse.model.node import validate_mesh_name
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
    "requests",
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


class MeshBody(msgspec.Struct, forbid_unknown_fields=True):
    mesh: MeshName
    relay: str | None = None


async def add_mesh(call: LocalCall) -> HttpResponse:
    """Serve another mesh, or retry one that has failed."""
    body = await call.body(MeshBody)
    await call.context.meshes.add(body.mesh, body.relay)
    return json_response(await read_health(call))


async def remove_mesh(call: LocalCall) -> HttpResponse:
    """Stop serving a mesh; its files stay."""
    mesh = validate_mesh_name(call.params["mesh"])
    await call.context.meshes.remove(mesh)
    return json_response({"mesh": mesh})


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    mesh: MeshName | None = None


async def rotate_key(call: LocalCall) -> HttpResponse:
    """Replace this host's key in a mesh with a new one."""
    await call.body(KeyBody)  # it may name the mesh
    meshes = call.context.meshes
    change = await meshes.rotate_key(call.named_mesh)
    return json_response({"mesh": call.named_mesh or meshes.default, "before": change.node, "node": change.successor})


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
        "refusal": None if node.uplink.refusal is None else node.uplink.refusal.code,
        "relay_error": None if node.uplink.connect_error is None else str(node.uplink.connect_error),
        "clock_difference_s": _rounded(node.uplink.clock_watch.difference_s),
        "clock_trusted": node.uplink.trusts_clock,
        "clock_doubt": node.uplink.clock_watch.doubt,
        "lag_ms": await _lag_ns(call, node) // MILLISECOND_NS,
        "queue_depth": depth.pending,
        "inflight": depth.inflight,
        "mesh": node.mesh,
        "member": node.roster.name_of(node.key.node),
        "node": node.key.node,
        "relay": node.settings.relay,
        "is_ephemeral": node.settings.is_ephemeral,
        "parked_events": context.user_hooks.parked.total,
        "uptime_s": (context.clock.boot_ns() - context.started_ns) // SECOND_NS,
        "meshes": context.meshes.states(),
    } | states


def _rounded(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


async def _lag_ns(call: LocalCall, node: MeshNode) -> int:
    oldest_ns = await node.outbox.oldest_pending_ns()
    return 0 if oldest_ns is None else max(0, call.context.clock.wall_ns() - oldest_ns)


_ACCEPTED = {200: Accepted, 202: Accepted}
_NO_AGENT, _NO_MESH = frozenset({AGENT_HEADER}), frozenset({MESH_HEADER})
_NEITHER = _NO_AGENT | _NO_MESH
ROUTES: tuple[Route[LocalCall], ...] = (
    Route("POST", "/v1/send", outbox_routes.send_message, bodies=(SendRequest,), responses=_ACCEPTED),
    Route(
        "POST",
        "/v1/topic/create",
        mesh_routes.create_topic,
        bodies=(mesh_routes.TopicBody,),
        responses={201: types.TopicName},
    ),
    Route("POST", "/v1/topic/post", outbox_routes.post_to_topic, bodies=(outbox_routes.PostBody,), responses=_ACCEPTED),
    Route(
        "POST",
        "/v1/topic/subscribe",
        mesh_routes.subscribe_topic,
        bodies=(mesh_routes.SubscriptionBody,),
        responses={200: types.Subscription},
    ),
    Route(
        "POST",
        "/v1/topic/unsubscribe",
        mesh_routes.unsubscribe_topic,
        bodies=(mesh_routes.SubscriptionBody,),
        responses={200: types.Subscription},
    ),
    Route("GET", "/v1/topic/list", mesh_routes.list_topics, responses={200: types.TopicList}),
    Route("GET", "/v1/inbox", inbox_routes.list_inbox, query=inbox_routes.InboxQuery, responses={200: types.InboxPage}),
    Route(
        "POST", "/v1/inbox/seen", inbox_routes.mark_seen, bodies=(inbox_routes.SeenBody,), responses={200: types.Count}
    ),
    Route(
        "POST",
        "/v1/inbox/mark",
        inbox_routes.move_mark,
        bodies=(inbox_routes.MarkBody,),
        responses={200: types.MovedMark},
    ),
    Route(
        "GET",
        "/v1/inbox/{id}",
        inbox_routes.show_inbox_item,
        query=inbox_routes.ItemQuery,
        responses={200: InboxItem},
    ),
    Route(
        "GET",
        "/v1/threads",
        history_routes.list_threads,
        query=history_routes.ThreadsQuery,
        responses={200: types.ThreadPage},
    ),
    Route("GET", "/v1/threads/{id}", inbox_routes.show_thread, responses={200: Thread}),
    Route(
        "GET",
        "/v1/traffic",
        history_routes.show_traffic,
        query=history_routes.TrafficQuery,
        responses={200: Traffic},
    ),
    Route(
        "GET",
        "/v1/outbox",
        outbox_routes.list_outbox,
        query=outbox_routes.OutboxQuery,
        responses={200: types.OutboxPage},
    ),
    Route(
        "POST",
        "/v1/outbox/requeue",
        outbox_routes.requeue_outbox_row,
        bodies=(outbox_routes.RequeueBody,),
        responses={200: RequeuedRow},
    ),
    Route(
        "POST",
        "/v1/outbox/drop",
        outbox_routes.drop_outbox_row,
        bodies=(outbox_routes.DropBody,),
        responses={200: types.Aborted},
    ),
    Route("GET", "/v1/outbox/{id}", outbox_routes.show_outbox_row, responses={200: types.OutboxDetail}),
    Route(
        "GET",
        "/v1/events",
        inbox_routes.stream_events,
        query=inbox_routes.EventsQuery,
        responses={200: None},
        media_type="text/event-stream",
    ),
    Route(
        "POST",
        "/v1/messages/withdraw",
        outbox_routes.withdraw_message,
        bodies=(outbox_routes.DropBody,),
        responses={200: types.Withdrawn},
    ),
    Route("GET", "/v1/messages/{id}", mesh_routes.show_message, responses={200: types.MessageState}),
    Route(
        "GET",
        "/v1/answers/{id}",
        request_routes.list_answers,
        query=request_routes.AnswersQuery,
        responses={200: Answers},
    ),
    Route(
        "GET",
        "/v1/history",
        history_routes.show_history,
        query=history_routes.HistoryQuery,
        responses={200: types.HistoryPage},
    ),
    Route(
        "POST",
        "/v1/locks/acquire",
        mesh_routes.acquire_lock,
        bodies=(mesh_routes.AcquireBody,),
        responses={200: LockGrant},
    ),
    Route(
        "POST", "/v1/locks/renew", mesh_routes.renew_lock, bodies=(mesh_routes.RenewBody,), responses={200: LockGrant}
    ),
    Route(
        "POST",
        "/v1/locks/release",
        mesh_routes.release_lock,
        bodies=(mesh_routes.ReleaseLockBody,),
        responses={200: types.ReleasedLock},
    ),
    Route(
        "POST",
        "/v1/agents",
        agent_routes.register_agent,
        bodies=(agent_routes.RegisterBody,),
        responses={200: Agent, 201: Agent},
        ignored_headers=_NEITHER,
    ),
    Route("GET", "/v1/agents", agent_routes.list_agents, responses={200: types.AgentList}, ignored_headers=_NO_AGENT),
    Route("GET", "/v1/agents/{name}", agent_routes.show_agent, responses={200: Agent}, ignored_headers=_NEITHER),
    Route(
        "POST",
        "/v1/agents/rename",
        agent_routes.rename_agent,
        bodies=(agent_routes.RenameBody,),
        responses={200: Agent},
        ignored_headers=_NEITHER,
    ),
    Route(
        "POST",
        "/v1/agents/retire",
        agent_routes.retire_agent,
        bodies=(agent_routes.RetireBody,),
        responses={200: Agent},
        ignored_headers=_NEITHER,
    ),
    Route(
        "POST",
        "/v1/agents/pause",
        agent_routes.pause_agents,
        bodies=(agent_routes.PauseBody,),
        responses={200: types.AgentList},
        ignored_headers=_NO_MESH,
    ),
    Route(
        "POST",
        "/v1/agents/resume",
        agent_routes.resume_agents,
        bodies=(agent_routes.AgentsBody,),
        responses={200: types.AgentList},
        ignored_headers=_NO_MESH,
    ),
    Route(
        "POST",
        "/v1/agents/on-mail",
        hook_routes.set_on_mail,
        bodies=(hook_routes.OnMailBody,),
        responses={200: types.OnMail},
        ignored_headers=_NEITHER,
    ),
    Route(
        "POST",
        "/v1/reservations",
        reservation_routes.reserve_paths,
        bodies=(reservation_routes.ReserveBody,),
        responses={201: types.GrantedReservation},
        ignored_headers=_NO_MESH,
    ),
    Route(
        "GET",
        "/v1/reservations",
        reservation_routes.list_reservations,
        query=reservation_routes.ReservationsQuery,
        responses={200: types.ReservationList},
        ignored_headers=_NO_MESH,
    ),
    Route(
        "DELETE",
        "/v1/reservations",
        reservation_routes.release_paths,
        bodies=(reservation_routes.ReleaseBody,),
        responses={200: types.ReservationList},
        ignored_headers=_NO_MESH,
    ),
    Route("GET", "/v1/peers", mesh_routes.list_peers, responses={200: types.PeerList}),
    Route(
        "POST",
        "/v1/profile",
        mesh_routes.update_profile,
        bodies=(mesh_routes.ProfileBody,),
        responses={200: types.AppliedProfile},
    ),
    Route("POST", "/v1/hooks/{program}/{event}", hook_routes.run_hook),
    Route(
        "GET",
        "/v1/event-hooks",
        hook_routes.list_event_hooks,
        responses={200: types.EventHooks},
        ignored_headers=_NO_MESH,
    ),
    Route(
        "POST",
        "/v1/event-hooks/parked",
        hook_routes.change_parked,
        bodies=(hook_routes.ParkedBody,),
        responses={200: types.ChangedHook},
        ignored_headers=_NO_MESH,
    ),
    Route("GET", "/v1/meshes", list_meshes, responses={200: types.MeshList}, ignored_headers=_NEITHER),
    Route("POST", "/v1/meshes", add_mesh, bodies=(MeshBody,), responses={200: Health}, ignored_headers=_NEITHER),
    Route("DELETE", "/v1/meshes/{mesh}", remove_mesh, responses={200: types.MeshName}, ignored_headers=_NO_MESH),
    Route("POST", "/v1/key/rotate", rotate_key, bodies=(KeyBody,), responses={200: types.RotatedKey}),
    Route("GET", "/v1/version", show_version, responses={200: DaemonVersion}, ignored_headers=_NEITHER),
    Route("GET", "/v1/health", show_health, responses={200: Health}, ignored_headers=_NO_AGENT),
    Route(
        "GET", "/v1/metrics", show_metrics, responses={200: None}, media_type="text/plain", ignored_headers=_NO_AGENT
    ),
    Route("POST", "/v1/mcp", hook_routes.serve_program, may_wait=True),
    Route("POST", MCP_PATH, post_message, may_wait=True),
    Route("DELETE", MCP_PATH, delete_session),
)
