"""GET /v1/version, /v1/health and /v1/metrics: what this daemon is and how it is doing."""

from __future__ import annotations

from typing import Any

from posthouse.answer import Answer, json_answer
from posthouse.daemon.directory import SCHEMA_VERSION
from posthouse.daemon.ipc.call import Call
from posthouse.daemon.metrics import CONTENT_TYPE
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.version import __version__

IPC_API = 1
FEATURES = ("send", "topics", "inbox", "inbox_wait", "outbox", "events", "history", "locks", "peers", "profile")


async def version(call: Call) -> Answer:
    """Return what speaks here."""
    return json_answer({"version": __version__, "ipc_api": IPC_API, "features": FEATURES, "schema": SCHEMA_VERSION})


async def health(call: Call) -> Answer:
    """Return how the daemon is doing."""
    return json_answer(await read_health(call))


async def metrics(call: Call) -> Answer:
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
    return Answer(200, daemon.meters.render(gauges), CONTENT_TYPE)


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
