"""The page Health: the state of daemon and relay, their load and storage, refusals, and warnings.

Figures come from the metrics of relay and daemon, sampled while the console runs; the relay shows them to its admins.
Warnings come from the state of daemon, relays, webhooks, mesh and audit, and from events that need attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from posthouse.client.daemon import Health
from posthouse.client.metric_samples import Series
from posthouse.console.context import ConsoleCall
from posthouse.console.pictures import draw_spark
from posthouse.console.rendering import seconds
from posthouse.console.upstream import Found, Upstream, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.api import ClusterState, MeshUsage
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.model.mesh_limits import MeshLimits, OnFull, has_reached
from posthouse.pipeline.audit.finding import CODES, LastAudit

_HOUR_NS = 3_600 * SECOND_NS
_WARNINGS_MAX = 20
_REFUSALS_MAX = 200
_GAUGES = (
    ("posthouse_relay_connections", "connections"),
    ("posthouse_relay_streams", "streams"),
    ("posthouse_relay_subscriptions", "subscriptions"),
    ("posthouse_relay_queued_messages", "queued"),
    ("posthouse_relay_messages_in_flight", "in flight"),
    ("posthouse_relay_parked_messages", "dead letters"),
    ("posthouse_relay_lock_waiters", "waiting for locks"),
    ("posthouse_relay_writer_waiting_items", "waiting for the writer"),
)
_RATES = (
    ("posthouse_relay_events_accepted_total", "events accepted"),
    ("posthouse_relay_deliveries_total", "messages delivered"),
    ("posthouse_relay_events_refused_total", "events refused"),
    ("posthouse_relay_commits_total", "commits"),
)
#: shown where the relay has measured it
_LATENCIES = (
    ("posthouse_relay_commit_seconds", "commit"),
    ("posthouse_relay_event_lag_seconds", "commit to subscribers"),
    ("posthouse_relay_request_seconds", "request"),
    ("posthouse_relay_flush_seconds", "backlog of a reader"),
    ("posthouse_relay_lock_wait_seconds", "wait for a lock"),
)
_SIZES = (
    ("posthouse_relay_store_bytes", "store"),
    ("posthouse_relay_disk_free_bytes", "free on the disk"),
    ("posthouse_relay_wal_bytes", "write-ahead log"),
    ("posthouse_relay_outbound_bytes", "unsent bytes"),
)


#: over all meshes
_UPKEEP = (
    ("posthouse_relay_stored_events", "events of all meshes"),
    ("posthouse_relay_meshes_full", "meshes that are full"),
    ("posthouse_relay_events_swept_total", "events swept since the start"),
)


class Warning(NamedTuple):  # noqa: A001 - the page's word
    """A state or an event that needs a person's attention."""

    text: str
    at: str | None = None
    hint: str = ""


async def show_health(call: ConsoleCall) -> HttpResponse:
    """Show the state of relay and daemon."""
    upstream = call.upstream
    daemon = await attempt(upstream.daemon.health())
    info = await attempt(upstream.relay.info())
    refusals = await _refusals(call)
    webhooks = await _webhooks(upstream)
    cluster = (await attempt(upstream.relay.archive.cluster())).value
    usage = (await attempt(upstream.relay.meshes.usage(upstream.mesh))).value
    series, audit = upstream.samples.relay, upstream.read_last_audit()
    return call.page(
        "health.html",
        mesh=upstream.mesh,
        daemon=daemon,
        info=info,
        relay_url=upstream.relay.url.origin,
        role=await upstream.role(),
        tiles=[(words, series.value(name)) for name, words in _GAUGES if series.value(name) is not None],
        rates=[(words, draw_spark(series.rates(name))) for name, words in _RATES],
        latencies=list(_latencies(series)),
        sizes=[(words, value) for name, words in _SIZES if (value := series.value(name)) is not None],
        refused=series.by_label("posthouse_relay_events_refused_total", "code"),
        has_metrics=bool(series.samples),
        sample_s=upstream.sample_s,
        outbox=_outbox(upstream.samples.daemon),
        refusals=refusals,
        warnings=[
            *_webhook_warnings(webhooks),
            *_cluster_warnings(cluster),
            *_usage_warnings(usage),
            *_warnings(upstream, daemon, info, audit),
        ],
        cluster=cluster if cluster is not None and cluster.relays else None,
        usage=usage,
        shares=[] if usage is None else _shares(usage),
        rules=[] if usage is None else list(_rules(usage.limits, series)),
        upkeep=list(_upkeep(series)),
        webhooks=webhooks,
        audit=audit,
        meanings=CODES,
    )


def _latencies(series: Series) -> Iterator[tuple[str, float | None, float | None]]:
    for name, words in _LATENCIES:
        if (median := series.quantile(name, 0.5)) is not None:
            yield words, median, series.quantile(name, 0.99)


def _outbox(series: Series) -> list[tuple[str, float]]:
    names = (("posthouse_daemon_outbox_pending", "waiting"), ("posthouse_daemon_outbox_inflight", "in flight"))
    return [(words, value) for name, words in names if (value := series.value(name)) is not None]


async def _refusals(call: ConsoleCall) -> list[dict[str, Any]]:
    """Return the refusals of the last hour by sender and code, the most frequent first; for admins of the relay."""
    found = await attempt(call.upstream.relay.archive.newest_records(types=("refused",), limit=_REFUSALS_MAX))
    if found.value is None:
        return []
    since_ns = call.context.clock.wall_ns() - _HOUR_NS
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for record in found.value.records:
        if record.at_ns >= since_ns:
            key = (str(record.body.get("code")), str(record.body.get("key")))
            line = counts.setdefault(key, {"code": key[0], "key": key[1], "count": 0, "at_ns": record.at_ns})
            line["count"] += int(record.body.get("count", 0))
    return sorted(counts.values(), key=lambda line: -line["count"])[:_WARNINGS_MAX]


class ShownWebhook(NamedTuple):
    """A webhook as the page shows it: the path of its URL is a secret."""

    receiver: str
    format: str
    state: str
    parked: int
    last_sent_at_ns: int | None
    last_error: str


async def _webhooks(upstream: Upstream) -> list[ShownWebhook]:
    """Return the webhooks of the mesh that the user may see; empty if the relay does not list them."""
    found = await attempt(upstream.relay.webhooks.all(upstream.mesh))
    if found.value is None:
        return []
    return [
        ShownWebhook(
            _receiver(each.url), each.preset, each.state, each.parked, each.last_sent_at_ns, each.last_error or ""
        )
        for each in found.value.webhooks
    ]


def _receiver(url: str) -> str:
    parts = urlsplit(url)
    return parts.hostname or parts.path


def _webhook_warnings(webhooks: list[ShownWebhook]) -> Iterator[Warning]:
    for each in webhooks:
        hint = "`posthouse webhook show` says why; `webhook retry` sends again."
        if each.state != "active":
            yield Warning(f"The webhook to {each.receiver} is {each.state}: {each.last_error}", hint=hint)
        elif each.parked:
            yield Warning(f"The receiver of the webhook to {each.receiver} refused {each.parked} events.", hint=hint)


def _cluster_warnings(cluster: ClusterState | None) -> Iterator[Warning]:
    if cluster is None or not cluster.relays:
        return
    if cluster.leader is None:
        yield Warning("No relay is the leader: locks wait until there is one.")
    for each in cluster.relays:
        if not each.is_alive:
            hint = "Its clients continue at another relay; the leader removes it from the list after a while."
            yield Warning(f"The relay {each.url} has been silent for {seconds(each.silent_s)}.", hint=hint)


class Share(NamedTuple):
    """How much of a limit is used."""

    words: str
    used: int
    #: None: there is no limit
    most: int | None
    is_size: bool = False


def _shares(usage: MeshUsage) -> list[Share]:
    limits = usage.limits
    return [
        Share("events", usage.events, limits.max_events),
        Share("size of events", usage.bytes, limits.max_bytes, is_size=True),
        Share("members", usage.members, limits.max_members),
        Share("topics", usage.topics, limits.max_topics),
    ]


def _rules(limits: MeshLimits, series: Series) -> Iterator[str]:
    """Yield one sentence for each rule by which the relay removes or refuses events of the mesh."""
    for each in limits.max_age:
        kinds = f"{each.first_kind}" if each.first_kind == each.last_kind else f"{each.first_kind} to {each.last_kind}"
        yield f"Events of kind {kinds} are kept for {seconds(each.max_age_s)}."
    if limits.max_age and series.value("posthouse_relay_clock_steady") == 0:
        yield "No event is deleted because of its age until the clock of the relay has been steady for an hour."
    if limits.versions is not None:
        yield f"Versions kept of each coordinate: {limits.versions}."
    if limits.is_bounded:
        drops = limits.on_full is OnFull.DROP_OLDEST
        yield "A full mesh drops its oldest events." if drops else "A full mesh refuses new events."


def _usage_warnings(usage: MeshUsage | None) -> Iterator[Warning]:
    if usage is not None and has_reached(usage.limits, usage.events, usage.bytes):
        what = "drops its oldest events" if usage.limits.on_full is OnFull.DROP_OLDEST else "refuses new events"
        hint = "`posthouse mesh limits` changes what it may store."
        yield Warning(f"The mesh {usage.mesh} is full and {what}.", hint=hint)


def _upkeep(series: Series) -> Iterator[tuple[str, str]]:
    """Yield the results of the relay's sweepers, and their age; only the leader has them, for its admins."""
    for name, words in _UPKEEP:
        if (value := series.value(name)) is not None:
            yield words, f"{value:,.0f}"
    for sweeper, age_s in sorted(series.by_label("posthouse_relay_sweep_age_seconds", "sweeper").items()):
        yield f"last sweep of {sweeper}", f"{seconds(int(age_s))} ago"


def _warnings(
    upstream: Upstream, daemon: Found[Health], info: Found[dict[str, Any]], audit: LastAudit | None
) -> list[Warning]:
    """Return the current warnings, then the newest events that are warnings."""
    found = [_failure(each) for each in (daemon.failure, info.failure) if each is not None]
    if daemon.value is not None:
        found += _daemon_warnings(daemon.value)
    found += _waiting_letters(upstream)
    if audit is not None and audit.total:
        text = f"The last audit of the history has findings: {audit.total}."
        found.append(Warning(text, format_utc(audit.at_ns), "They are listed below."))
    events = [row for row in upstream.feed.after(0) if row.is_warning]
    found += [Warning(f"{row.kind}: {row.detail}", format_utc(row.at_ns)) for row in reversed(events)]
    return found[:_WARNINGS_MAX]


def _waiting_letters(upstream: Upstream) -> Iterator[Warning]:
    parked = upstream.samples.relay.value("posthouse_relay_parked_messages")
    if parked:
        what = "1 dead letter waits" if parked == 1 else f"{parked:.0f} dead letters wait"
        yield Warning(f"{what} at the relay for a decision.", hint="The page Queues shows why.")


def _failure(failure: PosthouseError) -> Warning:
    return Warning(str(failure), hint=failure.hint)


def _daemon_warnings(health: Health) -> Iterator[Warning]:
    if not health.connected:
        yield Warning(f"The daemon has no connection to its relay: {health.relay_error or 'it is connecting'}.")
    if health.refusal is not None:
        yield Warning(f"The relay does not admit this host: {health.refusal}.")
    if not health.writable:
        yield Warning("A store of the daemon cannot be written; the disk may be full.")
    if health.clock_warning is not None:
        yield Warning(health.clock_warning)
    for mesh in health.meshes:
        if mesh.error is not None:
            yield Warning(f"Mesh {mesh.mesh}: {mesh.reason}", hint=mesh.hint or "")
