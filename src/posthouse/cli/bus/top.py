"""`posthouse bus top`: the traffic of a bus, live."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.bus.tap import Seconds
from posthouse.cli.console import PLAIN, Output, show, table, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from posthouse.bus import Bus
    from posthouse.cli.bus.traffic import Fact, Mailbox, Traffic

_CIRCUIT_STYLES = {"OPEN": "bold red", "HALF_OPEN": "yellow", "CLOSED": "green"}


def top(
    *,
    once: Annotated[bool, Parameter(negative=(), show_default=False, help="Show one moment and end.")] = False,
    interval_s: Annotated[float, Parameter(name="--interval", help="Seconds between two looks.")] = 1.0,
    recent: Annotated[int, Parameter(help="How many of the newest facts to show.")] = 12,
    for_s: Seconds = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Show depths, rates, breakers and the newest messages; consumes nothing.

    For example:

        posthouse bus top
        posthouse bus top --once --json
        posthouse bus top --interval 0.5 --for 30
    """
    from posthouse.model.errors import error

    if not 0 < interval_s <= 3600 or recent < 0:
        raise error("usage", text="--interval must be more than 0 and at most 3600 s, --recent at least 0")
    visit(directory, output, lambda bus: _watch(bus, 0.0 if once else for_s, interval_s, recent, output))


async def _watch(bus: Bus, for_s: float | None, interval_s: float, recent: int, output: Output) -> None:
    import asyncio
    import sys

    from posthouse.cli.bus.traffic import look
    from posthouse.model.clock import system_clock

    clock = system_clock()
    loop = asyncio.get_running_loop()
    ends_at = None if for_s is None else loop.time() + for_s
    clears = ends_at is None and not output.json and sys.stdout.isatty()
    while True:
        traffic = await look(bus, clock.wall_ns(), recent)
        if clears:
            show(sys.stdout, _clear())
        output.answer(asdict(traffic), render(traffic, str(bus.path)))
        if ends_at is not None and loop.time() + interval_s > ends_at:
            return
        await asyncio.sleep(interval_s)


def render(traffic: Traffic, path: str) -> RenderableType:
    """Lay out one moment for people."""
    from rich.console import Group
    from rich.text import Text

    rates = "   ".join(f"{kind} {rate:g}/s" for kind, rate in traffic.rates.items())
    parts: list[RenderableType] = [
        Text(f"bus {visible(path)}", "bold"),
        Text(f"{rates}   dead letters {traffic.dead_letters}"),
        Text(),
        table(("endpoint", "depth", "circuit", "failures", "owner"), map(_mailbox_row, traffic.mailboxes)),
        Text(),
        table(("time", "what", "from", "to", "content"), map(_fact_row, reversed(traffic.recent))),
    ]
    return Group(*parts)


def _mailbox_row(mailbox: Mailbox) -> tuple[object, ...]:
    from rich.text import Text

    circuit = Text(mailbox.circuit, _CIRCUIT_STYLES.get(mailbox.circuit, ""))
    return mailbox.subject, mailbox.depth, circuit, mailbox.failures, mailbox.owner or ""


def _fact_row(fact: Fact) -> tuple[object, ...]:
    from posthouse.model.timestamps import format_utc

    return format_utc(fact.at_ns)[11:-1], fact.kind, fact.sender, fact.endpoint, fact.text


def _clear() -> RenderableType:
    from rich.control import Control
    from rich.segment import ControlType

    return Control(ControlType.HOME, ControlType.CLEAR)
