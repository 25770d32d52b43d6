"""`posthouse bus top`: mailbox depths, rates, breakers and the newest records of a bus, live.

It only reads: endpoints and counters through the bus, records from the journal, messages being handled from cur/
(moving a file there sets its change time). Rates cover the last WINDOW_S seconds of the journal; nothing is counted
between two samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.bus_session import BusDir, Seconds, shorten, with_bus
from posthouse.cli.output import PLAIN, Output, show, table, visible
from posthouse.model.limits import SECOND_NS, SLOW_AFTER_S

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from posthouse.bus import Bus
    from posthouse.journal.digest import Record


WINDOW_S = 10
_TAIL = 20_000  # records read at most: bounds the cost of one sample of a busy bus
_PAGE = 1_000
_KINDS = ("published", "handled", "failed", "dead", "refused")


@dataclass(frozen=True)
class JournalLine:
    """One journal record, as the view shows it."""

    at_ns: int
    kind: str
    sender: str
    endpoint: str
    text: str


@dataclass(frozen=True)
class MailboxState:
    """One endpoint with its depth and its circuit breaker."""

    subject: str
    owner: str | None
    depth: int
    #: messages that handlers are working on
    in_work: int
    #: seconds since the handler of the oldest one started
    in_work_s: int
    circuit: str
    failures: int


@dataclass(frozen=True)
class Traffic:
    """One sample of a bus."""

    at_ns: int
    mailboxes: list[MailboxState]
    #: records per second over the window, by kind
    rates: dict[str, float]
    #: indexed messages, by status
    by_status: dict[str, int]
    dead_letters: int
    recent: list[JournalLine] = field(default_factory=list)


async def sample_traffic(bus: Bus, now_ns: int, recent: int) -> Traffic:
    """Return a sample with the newest `recent` records."""
    breakers = {breaker.subject: breaker for breaker in await bus.breakers()}
    metrics, depths = await bus.metrics(), await bus.depths()
    lines, counts = _read_tail(bus.path / "bus.db", now_ns, recent)
    return Traffic(
        at_ns=now_ns,
        mailboxes=[
            MailboxState(
                endpoint.subject,
                endpoint.owner,
                depths.get(endpoint.subject, 0),
                *_in_work(bus.path / "mailboxes" / endpoint.hash / "cur", now_ns),
                str(breakers[endpoint.subject].circuit) if endpoint.subject in breakers else "CLOSED",
                breakers[endpoint.subject].failures if endpoint.subject in breakers else 0,
            )
            for endpoint in await bus.list_endpoints()
        ],
        rates={kind: round(counts[kind] / WINDOW_S, 1) for kind in _KINDS},
        by_status=dict(metrics.by_status),
        dead_letters=metrics.by_status.get("dlq", 0),
        recent=lines,
    )


def _in_work(folder: Path, now_ns: int) -> tuple[int, int]:
    """Return how many messages are being handled, and for how many seconds the oldest one has been."""
    import os

    started_ns: list[int] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                with suppress(FileNotFoundError):  # handled meanwhile
                    started_ns.append(entry.stat(follow_symlinks=False).st_ctime_ns)
    except FileNotFoundError:  # unregistered meanwhile
        return 0, 0
    return len(started_ns), max(0, now_ns - min(started_ns, default=now_ns)) // SECOND_NS


def _read_tail(path: Path, now_ns: int, recent: int) -> tuple[list[JournalLine], Counter[str]]:
    since_ns = now_ns - WINDOW_S * SECOND_NS
    counts: Counter[str] = Counter()
    lines: list[JournalLine] = []
    for record in newest_records(path, _TAIL):
        if record.at_ns < since_ns and len(lines) >= recent:
            break
        kind = record.type.removeprefix("bus.")
        if kind not in _KINDS:
            continue
        body = record.decoded_body()
        if record.at_ns >= since_ns:
            counts[kind] += body.get("count", 1)
        if len(lines) < recent:
            lines.append(_journal_line(record, kind, body))
    return lines, counts


def newest_records(path: Path, most: int) -> Iterator[Record]:
    """Yield at most `most` records of a journal, newest first."""
    from posthouse.journal.read import read_after, read_extent
    from posthouse.sqlite.connection import open_reader

    db = open_reader(path)
    try:
        head = read_extent(db).head
        low = head
        while low > max(0, head - most):
            start = max(0, low - _PAGE)
            yield from reversed([record for record in read_after(db, start, _PAGE) if record.seq <= low])
            low = start
    finally:
        db.close()


def _journal_line(record: Record, kind: str, body: dict[str, Any]) -> JournalLine:
    envelope = body.get("envelope")
    text = shorten(envelope["payload"]) if envelope else str(body.get("reason") or "")
    endpoint = envelope["subject"] if envelope else str(body.get("endpoint") or body.get("key") or "")
    return JournalLine(record.at_ns, kind, record.actor or "", endpoint, text)


_CIRCUIT_STYLES = {"OPEN": "bold red", "HALF_OPEN": "yellow", "CLOSED": "green"}


def top(
    *,
    once: Annotated[bool, Parameter(negative=(), show_default=False, help="Show one sample and exit.")] = False,
    interval_s: Annotated[float, Parameter(name="--interval", help="Seconds between samples.")] = 1.0,
    recent: Annotated[int, Parameter(help="Number of newest records to show.")] = 12,
    for_s: Seconds = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Show mailbox depths, rates, circuit breakers and the newest records; consumes nothing.

    For example:

        posthouse bus top
        posthouse bus top --once --json
        posthouse bus top --interval 0.5 --for 30
    """
    from posthouse.model.errors import error

    if not 0 < interval_s <= 3600 or recent < 0:
        raise error("usage", text="--interval must be more than 0 and at most 3600 s, --recent at least 0")
    with_bus(directory, output, lambda bus: _watch(bus, 0.0 if once else for_s, interval_s, recent, output))


async def _watch(bus: Bus, for_s: float | None, interval_s: float, recent: int, output: Output) -> None:
    import asyncio
    import sys

    from posthouse.model.clock import system_clock

    clock = system_clock()
    loop = asyncio.get_running_loop()
    ends_at = None if for_s is None else loop.time() + for_s
    clears = ends_at is None and output.form == "table" and sys.stdout.isatty()
    while True:
        traffic = await sample_traffic(bus, clock.wall_ns(), recent)
        if clears:
            show(sys.stdout, _clear())
        output.result(asdict(traffic), render(traffic, str(bus.path)))
        if ends_at is not None and loop.time() + interval_s > ends_at:
            return
        await asyncio.sleep(interval_s)


def render(traffic: Traffic, path: str) -> RenderableType:
    """Return one sample as a view for the terminal."""
    from rich.console import Group
    from rich.text import Text

    rates = "   ".join(f"{kind} {rate:g}/s" for kind, rate in traffic.rates.items())
    parts: list[RenderableType] = [
        Text(f"bus {visible(path)}", "bold"),
        Text(f"{rates}   dead letters {traffic.dead_letters}"),
        Text(),
        table(("endpoint", "depth", "in work", "circuit", "failures", "owner"), map(mailbox_row, traffic.mailboxes)),
        Text(),
        table(("time", "event", "from", "to", "content"), map(_line_row, reversed(traffic.recent))),
    ]
    return Group(*parts)


def mailbox_row(mailbox: MailboxState) -> tuple[object, ...]:
    """Return the row of one endpoint; messages that take more than SLOW_AFTER_S to handle are yellow."""
    from rich.text import Text

    circuit = Text(mailbox.circuit, _CIRCUIT_STYLES.get(mailbox.circuit, ""))
    is_slow = mailbox.in_work_s > SLOW_AFTER_S
    in_work = Text(f"{mailbox.in_work}, {mailbox.in_work_s} s" if mailbox.in_work else "", "yellow" if is_slow else "")
    return mailbox.subject, mailbox.depth, in_work, circuit, mailbox.failures, mailbox.owner or ""


def _line_row(line: JournalLine) -> tuple[object, ...]:
    from posthouse.model.clock import format_utc

    return format_utc(line.at_ns)[11:-1], line.kind, line.sender, line.endpoint, line.text


def _clear() -> RenderableType:
    from rich.control import Control
    from rich.segment import ControlType

    return Control(ControlType.HOME, ControlType.CLEAR)
