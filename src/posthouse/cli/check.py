"""`posthouse check`: one line and an exit code about a relay or a daemon, for a monitoring system.

Exit codes are those of monitoring plugins: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. The line ends with the measured
values in the plugins' performance data format. A value that cannot be read never counts as good: the result is
UNKNOWN. A check changes nothing, and takes at most --timeout seconds.
"""

from __future__ import annotations

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_DAEMON, DEFAULT_RELAY, DaemonOptions, RelayOptions, default_mesh, read_file
from posthouse.cli.output import PLAIN, Output, one_line
from posthouse.client.metric_samples import Series
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.client.daemon import Health


class Level(enum.IntEnum):
    """The result of a check; its value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Unit(enum.Enum):
    """The unit of a value, as performance data writes it."""

    COUNT = ""
    SECONDS = "s"
    BYTES = "B"


@dataclass(frozen=True)
class Measure:
    """A value that has thresholds."""

    name: str
    help: str
    unit: Unit = Unit.COUNT
    #: the value is bad at or above this bound, or below it if low values are bad; None: never
    warn: float | None = None
    critical: float | None = None
    is_low_bad: bool = False

    def level_of(self, value: float) -> Level:
        """Return the level that the thresholds give a value."""
        if self._is_beyond(value, self.critical):
            return Level.CRITICAL
        return Level.WARNING if self._is_beyond(value, self.warn) else Level.OK

    def _is_beyond(self, value: float, bound: float | None) -> bool:
        if bound is None:
            return False
        return value < bound if self.is_low_bad else value >= bound

    def performance(self, value: float) -> str:
        """Return the value with its thresholds as performance data."""
        bounds = [self._range(bound) for bound in (self.warn, self.critical)]
        return f"{self.name}={_plain(value)}{self.unit.value};{bounds[0]};{bounds[1]};0"

    def _range(self, bound: float | None) -> str:
        if bound is None:
            return ""
        return f"{_plain(bound)}:" if self.is_low_bad else _plain(bound)

    def shown(self, value: float) -> str:
        """Return a value with its unit, for people."""
        if self.unit is Unit.BYTES:
            return next((f"{value / size:.1f} {name}iB" for name, size in _SIZES if value >= size), f"{value:.0f} B")
        if self.unit is Unit.SECONDS:
            return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.0f} s"
        return f"{value:.0f}"


_SIZES = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_GIB = 1 << 30

RELAY_MEASURES = (
    Measure("answer", "time until the relay answered", Unit.SECONDS, 1, 5),
    Measure("oldest", "age of the oldest unconfirmed message", Unit.SECONDS, _HOUR_S, _DAY_S),
    Measure("queued", "unconfirmed messages"),
    Measure("dead", "dead letters that wait for a decision", warn=1),
    Measure("disk_free", "free space on the disk of the relay", Unit.BYTES, 5 * _GIB, _GIB, is_low_bad=True),
    Measure("webhook_lag", "waiting time of the oldest event of a webhook", Unit.SECONDS, 10 * _MINUTE_S, _HOUR_S),
    Measure("full", "meshes that have reached a limit", warn=1),
    Measure("sweep", "time since the slowest sweeper finished a round", Unit.SECONDS, 2 * _HOUR_S, _DAY_S),
    Measure("connections", "open connections"),
)
#: measure -> metric; the largest value if it has labels
_RELAY_METRICS = {
    "oldest": "posthouse_relay_queue_oldest_seconds",
    "queued": "posthouse_relay_queued_messages",
    "dead": "posthouse_relay_parked_messages",
    "disk_free": "posthouse_relay_disk_free_bytes",
    "webhook_lag": "posthouse_relay_webhook_lag_seconds",
    "full": "posthouse_relay_meshes_full",
    "sweep": "posthouse_relay_sweep_age_seconds",
    "connections": "posthouse_relay_connections",
}
DAEMON_MEASURES = (
    Measure("answer", "time until the daemon answered", Unit.SECONDS, 1, 5),
    Measure("offline", "meshes without a connection, or that do not admit this host", warn=1),
    Measure("oldest", "age of the oldest message in the outbox", Unit.SECONDS, 10 * _MINUTE_S, _DAY_S),
    Measure("outbox", "messages in the outbox"),
    Measure("hooks", "events whose command keeps failing", warn=1),
    Measure("clock", "difference between the clocks of host and relay", Unit.SECONDS, 30, 240),
)


@dataclass
class Report:
    """The measured values and findings of a check."""

    service: str
    measures: Sequence[Measure]
    values: dict[str, float] = field(default_factory=dict)
    #: states that no threshold describes
    faults: list[tuple[Level, str]] = field(default_factory=list)

    @property
    def level(self) -> Level:
        """The worst level found; CRITICAL outranks UNKNOWN, because it is certain."""
        found = [level for level, _text in self._findings()]
        return Level.CRITICAL if Level.CRITICAL in found else max(found, default=Level.OK)

    def line(self) -> str:
        """Return the line for the monitoring system."""
        findings = [one_line(text).replace("|", "/") for _level, text in sorted(self._findings(), reverse=True)]
        values = [f"{each.name} {each.shown(self.values[each.name])}" for each in self._measured()]
        text = "; ".join(findings) or ", ".join(values)
        performance = " ".join(each.performance(self.values[each.name]) for each in self._measured())
        return f"{self.service.upper()} {self.level.name} - {text}" + (f" | {performance}" if performance else "")

    def value(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "service": self.service,
            "state": self.level.name.lower(),
            "code": int(self.level),
            "problems": [text for _level, text in sorted(self._findings(), reverse=True)],
            "measures": [
                {
                    "name": each.name,
                    "value": self.values[each.name],
                    "unit": each.unit.value,
                    "warn": each.warn,
                    "critical": each.critical,
                    "state": each.level_of(self.values[each.name]).name.lower(),
                }
                for each in self._measured()
            ],
        }

    def _measured(self) -> list[Measure]:
        return [each for each in self.measures if each.name in self.values]

    def _findings(self) -> Iterator[tuple[Level, str]]:
        yield from self.faults
        for each in self._measured():
            value = self.values[each.name]
            level = each.level_of(value)
            if level is not Level.OK:
                bound = each.critical if level is Level.CRITICAL else each.warn
                side = "below" if each.is_low_bad else "at or above"
                yield level, f"{each.name} is {each.shown(value)}, {side} {each.shown(bound or 0)} ({each.help})"


app = noun("check", "Check a relay or a daemon for a monitoring system: one line and exit code 0, 1, 2 or 3.")
_THRESHOLD = re.compile(
    r"(?P<name>[a-z_]+)=(?:(?P<off>off)|(?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)(?P<unit>[a-zA-Z]*))"
)
_UNITS: dict[Unit, dict[str, int]] = {
    Unit.COUNT: {"": 1},
    Unit.SECONDS: {"": 1, "s": 1, "m": _MINUTE_S, "h": _HOUR_S, "d": _DAY_S},
    Unit.BYTES: {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40},
}
Thresholds = Annotated[tuple[str, ...], Parameter(help="Threshold NAME=VALUE, or NAME=off; repeatable.", negative=())]
Timeout = Annotated[
    float, Parameter(name="--timeout", validator=Number(gt=0, lte=600), help="Seconds that the check may take.")
]
TokenFile = Annotated[
    Path | None,
    Parameter(help="File with the metrics token of the relay, instead of the key of an administrator."),
]


def with_thresholds(measures: Sequence[Measure], warn: Sequence[str], critical: Sequence[str]) -> list[Measure]:
    """Return the measures with the given thresholds, or raise check_usage for an invalid one."""
    by_name = {each.name: each for each in measures}
    for text in warn:
        name, bound = _parse_threshold(text, by_name)
        by_name[name] = replace(by_name[name], warn=bound)
    for text in critical:
        name, bound = _parse_threshold(text, by_name)
        by_name[name] = replace(by_name[name], critical=bound)
    return list(by_name.values())


def _parse_threshold(text: str, by_name: Mapping[str, Measure]) -> tuple[str, float | None]:
    """Return the name and the bound of a threshold; a bound of None switches it off."""
    found = _THRESHOLD.fullmatch(text)
    if found is None or found["name"] not in by_name:
        raise _unusable(text, f"it is not NAME=VALUE with a NAME of {', '.join(by_name)}")
    units = _UNITS[by_name[found["name"]].unit]
    factor = units.get(found["unit"] or "")
    if factor is None:
        raise _unusable(text, f"the units of {found['name']} are {', '.join(filter(None, units)) or 'none'}")
    return found["name"], None if found["off"] else float(found["number"]) * factor


def _unusable(threshold: str, reason: str) -> PosthouseError:
    return error("check_usage", text=f"{threshold!r} is not a threshold: {reason}")


def _plain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def relay(
    *,
    warn: Thresholds = (),
    critical: Thresholds = (),
    timeout_s: Timeout = 10.0,
    token_file: TokenFile = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> int:
    """Check that a relay accepts events, and that nothing waits for too long; exit code 0, 1, 2 or 3.

    Values: answer, oldest, queued, dead, disk_free, webhook_lag, full, sweep, connections. A time takes the unit s, m,
    h or d, a size K, M, G or T; `off` switches a default threshold off. Reading the values needs the key of an
    administrator of the relay, or its metrics token.

    For example:

        posthouse check relay
        posthouse check relay --relay relay.example:7420 --token-file metrics_token
        posthouse check relay --warn oldest=15m --critical oldest=2h --json
        posthouse check relay --warn dead=off --critical disk_free=2G
    """
    report = Report("relay", with_thresholds(RELAY_MEASURES, warn, critical))
    return _run(report, lambda: _check_relay(report, relay_options, token_file), timeout_s, output)


def daemon(
    *,
    warn: Thresholds = (),
    critical: Thresholds = (),
    timeout_s: Timeout = 10.0,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> int:
    """Check that the daemon of this host runs, writes and reaches its relays; exit code 0, 1, 2 or 3.

    Values: answer, offline, oldest, outbox, hooks, clock. Thresholds are written as in `posthouse check relay`.

    For example:

        posthouse check daemon
        posthouse check daemon --warn oldest=2m --critical oldest=30m
        posthouse check daemon --warn outbox=100 --critical offline=1 --json
    """
    report = Report("daemon", with_thresholds(DAEMON_MEASURES, warn, critical))
    return _run(report, lambda: _check_daemon(report, daemon_options), timeout_s, output)


def _run(report: Report, check: Callable[[], Awaitable[None]], timeout_s: float, output: Output) -> int:
    """Run a check and print its report; a failure of the check itself is UNKNOWN."""

    async def within() -> None:
        async with asyncio.timeout(timeout_s):
            await check()

    try:
        asyncio.run(within())
    except TimeoutError:
        report.faults.append((Level.CRITICAL, f"no answer within {timeout_s:g} s"))
    except PosthouseError as failure:
        report.faults.append((Level.UNKNOWN, str(failure)))
    output.result(report.value(), report.line())
    return report.level


async def _check_relay(report: Report, options: RelayOptions, token_file: Path | None) -> None:
    async with relay_client(options, default_mesh(), token_file) as client:
        started_ns = system_clock().boot_ns()
        try:
            await client.archive.check_ready()
        except PosthouseError as failure:
            report.faults.append((Level.CRITICAL, str(failure)))
            return
        report.values["answer"] = (system_clock().boot_ns() - started_ns) / SECOND_NS
        series = Series()
        series.add(0, await client.archive.metrics(token=read_token(token_file)))
    for name, metric in _RELAY_METRICS.items():
        found = [value for (each, _labels), value in series.newest.items() if each == metric]
        if found:  # earlier versions of the relay lack some metrics, and a follower does not sweep
            report.values[name] = max(found)


def relay_client(options: RelayOptions, mesh: str, token_file: Path | None) -> Client:
    """Return a client of the relay of a mesh; with a metrics token it needs no key of this host."""
    if token_file is None:
        return options.client(mesh)
    from posthouse.client import Client
    from posthouse.keys import NodeKey

    return Client(options.url(mesh), NodeKey.generate(), options=options.options())


def read_token(token_file: Path | None) -> str | None:
    """Return the token in a file, None without a file."""
    return None if token_file is None else read_file(token_file).decode(errors="replace").strip()


async def _check_daemon(report: Report, options: DaemonOptions) -> None:
    from posthouse.client.daemon import AsyncDaemonClient

    client = AsyncDaemonClient(options.location(), agent="")
    started_ns = system_clock().boot_ns()
    try:
        health = await client.health()
    except PosthouseError as failure:
        report.faults.append((Level.CRITICAL, str(failure)))
        return
    finally:
        await client.close()
    report.values["answer"] = (system_clock().boot_ns() - started_ns) / SECOND_NS
    _note_health(report, health)


def _note_health(report: Report, health: Health) -> None:
    if not health.writable:
        states = f"outbox {health.outbox_state}, inbox {health.inbox_state}, agents {health.agents_state}"
        report.faults.append((Level.CRITICAL, f"a store cannot be written: {states}"))
    away = [each for each in health.meshes if each.state != "connected" or not each.admitted]
    report.values |= {
        "offline": len(away),
        "oldest": health.lag_ms / 1_000,
        "outbox": health.queue_depth + health.inflight,
        "hooks": health.parked_events,
    }
    if health.clock_difference_s is not None:
        report.values["clock"] = abs(health.clock_difference_s)


app.command(relay, name="relay")
app.command(daemon, name="daemon")
