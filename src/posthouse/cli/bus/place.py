"""Which bus a command works on, and how: open it, do one thing, close it.

Commands are short visits; a bus has no server that would have to run. Imports of the bus stay inside functions, so
that `posthouse --help` loads none of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from posthouse.cli.console import Output

if TYPE_CHECKING:
    from posthouse.bus import Bus

R = TypeVar("R")

#: The option of every command about a bus.
BusDir = Annotated[
    Path | None,
    Parameter(name="--dir", help="The data directory; without it POSTHOUSE_BUS_DIR, else ~/.posthouse/bus."),
]

#: The subject a command publishes as.
Sender = Annotated[str, Parameter(name="--from", help="The subject to publish as.")]

DEFAULT_SENDER = "cli"


def visit(directory: Path | None, output: Output, work: Callable[[Bus], Awaitable[R]]) -> R:
    """Open the bus, run `work` on it and close it again."""
    import asyncio

    from posthouse.bus import Bus

    async def open_and_work() -> R:
        async with Bus(directory) as bus:
            return await work(bus)

    if output.json:
        _keep_log_silent()
    return asyncio.run(open_and_work())


def _keep_log_silent() -> None:
    """Let nothing but the one problem object reach a program that reads standard error."""
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
