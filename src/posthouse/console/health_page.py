"""The page Health: is everything running, how much happens, what is refused, and what needs attention.

Figures come from the metrics of relay and daemon, sampled while the console runs; the relay shows them to its admins.
Warnings are what the daemon reports about itself, events that need a person, and refusals of the last hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from posthouse.client.daemon import Health
from posthouse.console.context import ConsoleCall
from posthouse.console.metric_samples import Series
from posthouse.console.pictures import draw_spark
from posthouse.console.upstream import Found, Upstream, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS

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
#: shown where the relay measures it, the first that it has
_LATENCIES = (
    ("posthouse_relay_commit_seconds", "commit"),
    ("posthouse_relay_request_seconds", "request"),
    ("posthouse_relay_flush_seconds", "backlog of a reader"),
    ("posthouse_relay_lock_wait_seconds", "wait for a lock"),
)
_SIZES = (
    ("posthouse_relay_store_bytes", "store"),
    ("posthouse_relay_disk_free_bytes", "free on its disk"),
    ("posthouse_relay_wal_bytes", "write-ahead log"),
    ("posthouse_relay_outbound_bytes", "unsent bytes"),
)


class Warning(NamedTuple):  # noqa: A001 - the page's word
    """Something that needs a person."""

    text: str
    at: str | None = None
    hint: str = ""


async def show_health(call: ConsoleCall) -> HttpResponse:
    """Show the state of relay and daemon."""
    upstream = call.upstream
    daemon = await attempt(upstream.daemon.health())
    info = await attempt(upstream.relay.info())
    refusals = await _refusals(call)
    series = upstream.samples.relay
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
        warnings=_warnings(upstream, daemon, info),
    )


def _latencies(series: Series) -> Iterator[tuple[str, float | None, float | None]]:
    for name, words in _LATENCIES:
        if (median := series.quantile(name, 0.5)) is not None:
            yield words, median, series.quantile(name, 0.99)


def _outbox(series: Series) -> list[tuple[str, float]]:
    names = (("posthouse_daemon_outbox_pending", "waiting"), ("posthouse_daemon_outbox_inflight", "in flight"))
    return [(words, value) for name, words in names if (value := series.value(name)) is not None]


async def _refusals(call: ConsoleCall) -> list[dict[str, Any]]:
    """Return who was refused what in the last hour, the most first; admins of the relay may read it."""
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


def _warnings(upstream: Upstream, daemon: Found[Health], info: Found[dict[str, Any]]) -> list[Warning]:
    """Return what needs attention now, then the newest events that did."""
    found = [_failure(each) for each in (daemon.failure, info.failure) if each is not None]
    if daemon.value is not None:
        found += _daemon_warnings(daemon.value)
    found += _waiting_letters(upstream)
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
        yield Warning(f"The daemon has no connection to its relay: {health.relay_error or 'it is trying'}.")
    if health.refusal is not None:
        yield Warning(f"The relay does not admit this host: {health.refusal}.")
    if not health.writable:
        yield Warning("A store of the daemon cannot be written; the disk may be full.")
    if health.clock_warning is not None:
        yield Warning(health.clock_warning)
    for mesh in health.meshes:
        if mesh.error is not None:
            yield Warning(f"Mesh {mesh.mesh}: {mesh.reason}", hint=mesh.hint or "")
