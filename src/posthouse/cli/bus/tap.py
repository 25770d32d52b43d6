"""`posthouse bus tap`: watch messages go by; nothing is consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.bus.message import describe, plain_envelope
from posthouse.cli.bus.place import BusDir, visit
from posthouse.cli.console import PLAIN, Output

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.model.envelope import Envelope

Count = Annotated[int | None, Parameter(help="End after that many messages.")]
Seconds = Annotated[float | None, Parameter(name="--for", help="End after that many seconds.")]


def tap(
    pattern: Annotated[str, Parameter(help="What to watch; `>` is everything.")] = ">",
    /,
    *,
    after: Annotated[str | None, Parameter(help="A cursor of the journal; without it from now on.")] = None,
    count: Count = None,
    for_s: Seconds = None,
    directory: BusDir = None,
    output: Output = PLAIN,
) -> None:
    """Show every message that is published and matches, as it comes; consumes nothing.

    For example:

        posthouse bus tap '>'
        posthouse bus tap 'team.*' --count 10 --json
    """
    visit(directory, output, lambda bus: watch(bus, pattern, after, count, for_s, output))


async def watch(
    bus: Bus, pattern: str, after: str | None, count: int | None, for_s: float | None, output: Output
) -> None:
    """Show messages until enough were seen, the time is over, or the user has enough."""
    import asyncio
    import contextlib

    done = asyncio.Event()
    seen = 0

    async def show(envelope: Envelope) -> None:
        nonlocal seen
        if done.is_set():
            return
        output.answer(plain_envelope(envelope), describe(envelope))
        seen += 1
        if count is not None and seen >= count:
            done.set()

    await bus.tap(pattern, show, after=after)
    output.note(f"watching {pattern} on {bus.path}; Ctrl-C ends it")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), for_s)
