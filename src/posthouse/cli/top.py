"""`posthouse top`: connections, queues, rates and refusals of the relay and of this host's daemon, live.

It reads the metrics of both and changes nothing. The relay shows them to its administrators, and to the holder of its
metrics token; if they cannot be read, the view shows the reason. Rates are those between the last two samples. On a
terminal the view uses the alternate screen; q, Ctrl-C and SIGTERM end it and bring the old screen back.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.bus_session import Seconds
from posthouse.cli.check import TokenFile, read_token, relay_client
from posthouse.cli.options import DEFAULT_DAEMON, DEFAULT_RELAY, DaemonOptions, RelayOptions
from posthouse.cli.output import PLAIN, Output, show, table
from posthouse.client.metric_samples import Series
from posthouse.model.clock import Clock, format_utc, system_clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from rich.console import RenderableType

ReadMetrics = Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class View:
    """The metrics that the view shows of a process, each by its name in the view."""

    gauges: Mapping[str, str]
    rates: Mapping[str, str]
    #: histograms
    latencies: Mapping[str, str]
    #: counter of refusals, by code
    refusals: str
    #: gauges by mesh
    meshes: Mapping[str, str]


RELAY_VIEW = View(
    gauges={
        "connections": "posthouse_relay_connections",
        "streams": "posthouse_relay_streams",
        "subscriptions": "posthouse_relay_subscriptions",
        "readers": "posthouse_relay_mailboxes",
        "queued": "posthouse_relay_queued_messages",
        "in_flight": "posthouse_relay_messages_in_flight",
        "oldest_s": "posthouse_relay_queue_oldest_seconds",
        "dead": "posthouse_relay_parked_messages",
        "lock_waiters": "posthouse_relay_lock_waiters",
        "writer": "posthouse_relay_writer_waiting_items",
    },
    rates={
        "accepted": "posthouse_relay_events_accepted_total",
        "delivered": "posthouse_relay_deliveries_total",
        "live": "posthouse_relay_live_deliveries_total",
        "refused": "posthouse_relay_events_refused_total",
        "requests": "posthouse_relay_requests_total",
        "commits": "posthouse_relay_commits_total",
    },
    latencies={"commit": "posthouse_relay_commit_seconds", "event lag": "posthouse_relay_event_lag_seconds"},
    refusals="posthouse_relay_events_refused_total",
    meshes={
        "queued": "posthouse_relay_mesh_queued_messages",
        "oldest_s": "posthouse_relay_mesh_queue_oldest_seconds",
    },
)
DAEMON_VIEW = View(
    gauges={
        "connected": "posthouse_daemon_connected",
        "streams": "posthouse_daemon_streams",
        "requests": "posthouse_daemon_requests_running",
        "outbox": "posthouse_daemon_outbox_pending",
        "in_flight": "posthouse_daemon_outbox_inflight",
        "oldest_s": "posthouse_daemon_outbox_lag_seconds",
    },
    rates={
        "sent": "posthouse_daemon_outbox_sent_total",
        "received": "posthouse_daemon_inbox_received_total",
        "requests": "posthouse_daemon_requests_total",
        "dead": "posthouse_daemon_outbox_dead_total",
    },
    latencies={},
    refusals="posthouse_daemon_requests_refused_total",
    meshes={},
)


_QUANTILES = {"median_s": 0.5, "p99_s": 0.99}


@dataclass
class Watched:
    """A process that the view shows."""

    name: str
    where: str
    view: View
    read: ReadMetrics
    series: Series = field(default_factory=lambda: Series.of(2))
    failure: PosthouseError | None = None

    async def sample(self, clock: Clock) -> None:
        """Read the metrics once; a failure is shown in their place."""
        try:
            self.series.add(clock.boot_ns() / SECOND_NS, await self.read())
            self.failure = None
        except PosthouseError as failure:
            self.series.samples.clear()
            self.failure = failure

    def value(self) -> dict[str, Any]:
        """Return the last sample as JSON values."""
        if self.failure is not None:
            return {"where": self.where, "error": self.failure.code, "reason": str(self.failure)}
        view, series = self.view, self.series
        rates = {words: series.rates(name) for words, name in view.rates.items()}
        by_mesh = {words: series.by_label(name, "mesh") for words, name in view.meshes.items()}
        meshes = dict.fromkeys(mesh for values in by_mesh.values() for mesh in values)
        return {
            "where": self.where,
            "error": None,
            "values": {words: series.value(name) for words, name in view.gauges.items()},
            "rates": {words: round(found[-1], 2) if found else None for words, found in rates.items()},
            "latencies": {
                words: {key: _bounded(series.quantile(name, part)) for key, part in _QUANTILES.items()}
                for words, name in view.latencies.items()
            },
            "refusals": series.by_label(view.refusals, "code"),
            "meshes": {mesh: {words: values.get(mesh) for words, values in by_mesh.items()} for mesh in meshes},
        }


def top(
    *,
    once: Annotated[bool, Parameter(negative=(), show_default=False, help="Show one interval and exit.")] = False,
    interval_s: Annotated[
        float, Parameter(name="--interval", validator=Number(gt=0, lte=3600), help="Seconds between samples.")
    ] = 1.0,
    for_s: Seconds = None,
    token_file: TokenFile = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Show connections, queues, rates and refusals of relay and daemon, until q or Ctrl-C.

    The relay shows its figures to its administrators, and to the holder of its metrics token.

    For example:

        posthouse top
        posthouse top --once --json
        posthouse top --interval 5
        posthouse top --relay relay.example:7420 --token-file metrics_token
    """
    asyncio.run(_watch(_sources(daemon_options, relay_options, token_file), once, interval_s, for_s, output))


@asynccontextmanager
async def _sources(
    daemon_options: DaemonOptions, relay_options: RelayOptions, token_file: Any
) -> AsyncIterator[list[Watched]]:
    from posthouse.client.daemon import AsyncDaemonClient

    async with AsyncExitStack() as stack:
        location = daemon_options.location()
        daemon = AsyncDaemonClient(location, agent="")
        stack.push_async_callback(daemon.close)
        mesh, token = daemon_options.chosen_mesh(), read_token(token_file)
        try:
            client = await stack.enter_async_context(relay_client(relay_options, mesh, token_file))
        except PosthouseError as failure:  # a host without a key may still have a daemon to show
            read_relay = _raising(failure)
        else:
            read_relay = partial(client.archive.metrics, token)
        yield [
            Watched("relay", relay_options.url(mesh).origin, RELAY_VIEW, read_relay),
            Watched("daemon", str(location.directory), DAEMON_VIEW, daemon.metrics),
        ]


def _raising(failure: PosthouseError) -> ReadMetrics:
    async def read() -> str:
        raise failure

    return read


async def _watch(sources: Any, once: bool, interval_s: float, for_s: float | None, output: Output) -> None:
    clock, loop = system_clock(), asyncio.get_running_loop()
    is_live = not once and not output.json and sys.stdout.isatty()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    ends_at = None if for_s is None else loop.time() + for_s
    async with sources as watched:
        with _screen(ended.set) if is_live else _no_screen():
            await _sample(watched, clock)
            if once:
                await asyncio.sleep(interval_s)
                await _sample(watched, clock)
            while True:
                value = {"at": format_utc(clock.wall_ns()), **{each.name: each.value() for each in watched}}
                if is_live:
                    show(sys.stdout, _clear())
                output.result(value, _render(value, is_live=is_live))
                if once or (ends_at is not None and loop.time() + interval_s > ends_at):
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await ended.wait()
                        return
                await _sample(watched, clock)


async def _sample(watched: list[Watched], clock: Clock) -> None:
    await asyncio.gather(*(each.sample(clock) for each in watched))


@contextmanager
def _no_screen() -> Iterator[None]:
    yield


@contextmanager
def _screen(on_quit: Callable[[], None]) -> Iterator[None]:
    """Use the alternate screen and call `on_quit` for the key q; restore the terminal at the end."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    has_keys = sys.stdin is not None and sys.stdin.isatty()
    former = termios.tcgetattr(sys.stdin) if has_keys else None
    try:
        if has_keys:
            tty.setcbreak(sys.stdin)
            loop.add_reader(sys.stdin, _take_key, on_quit)
        show(sys.stdout, _alternate(is_on=True))
        yield
    finally:
        show(sys.stdout, _alternate(is_on=False))
        if former is not None:
            loop.remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def _take_key(on_quit: Callable[[], None]) -> None:
    import os

    keys = os.read(sys.stdin.fileno(), 64)
    if not keys or keys.lower().startswith(b"q"):
        on_quit()


def _alternate(*, is_on: bool) -> RenderableType:
    from rich.control import Control
    from rich.segment import ControlType

    screen = ControlType.ENABLE_ALT_SCREEN if is_on else ControlType.DISABLE_ALT_SCREEN
    return Control(screen, ControlType.HIDE_CURSOR if is_on else ControlType.SHOW_CURSOR)


def _clear() -> RenderableType:
    from rich.control import Control
    from rich.segment import ControlType

    return Control(ControlType.HOME, ControlType.CLEAR)


def _render(value: Mapping[str, Any], *, is_live: bool) -> RenderableType:
    """Return one sample as a view for the terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for name in ("relay", "daemon"):
        parts += [*_process_parts(name, value[name]), Text()]
    at = value["at"][11:19]
    parts.append(Text(f"{at} UTC   q ends" if is_live else f"{at} UTC", "dim"))
    return Group(*parts)


def _process_parts(name: str, value: Mapping[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(f"{name} {value['where']}", "bold")
    if value["error"] is not None:
        yield Text(f"  {value['reason']}", "red")
        return
    yield from _figures(value["values"], _count)
    yield from _figures(value["rates"], lambda rate: "-" if rate is None else f"{rate:g}/s")
    latencies = {f"{words} p99 at most": each["p99_s"] for words, each in value["latencies"].items()}
    yield from _figures(latencies, lambda bound_s: "-" if bound_s is None else f"{bound_s * 1000:g} ms")
    if value["meshes"]:
        rows = [
            (f"  {mesh}", _count(each["queued"]), _count(each["oldest_s"])) for mesh, each in value["meshes"].items()
        ]
        yield table(("  mesh", "queued", "oldest s"), rows)
    if value["refusals"]:
        refused = [(f"  {code}", _count(count)) for code, count in value["refusals"].items()]
        yield table(("  refused", "since the start"), refused[:_REFUSALS_SHOWN])


_REFUSALS_SHOWN = 8


def _bounded(bound_s: float | None) -> float | None:
    """Return the bound of a quantile, None if there are no values or they are beyond the last bucket."""
    return None if bound_s is None or math.isinf(bound_s) else bound_s


def _figures(values: Mapping[str, Any], shown: Callable[[Any], str]) -> Iterator[RenderableType]:
    from rich.text import Text

    if values:
        line = Text("  ")
        for words, value in values.items():
            line.append(words.replace("_", " ") + " ", "dim")
            line.append(shown(value) + "   ")
        yield line


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
