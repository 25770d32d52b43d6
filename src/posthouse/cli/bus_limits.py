"""`posthouse bus limits`: the limits in force, the source of each, and the processes whose limits differ.

The command opens the bus like a program that gives no arguments, so its own limits are those of config.json, the
settings and the defaults. The doctor uses `broken_files`, which reads a data directory without opening it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.cli.bus_session import BusDir, with_bus
from posthouse.cli.output import PLAIN, Output, one_line, table

if TYPE_CHECKING:
    from posthouse.bus import Bus
    from posthouse.bus.limits_in_force import ProcessLimits
    from posthouse.model.errors import PosthouseError


def limits(*, directory: BusDir = None, output: Output = PLAIN) -> None:
    """Show the limits in force, where each comes from, and where processes differ.

    For example:

        posthouse bus limits
        posthouse bus limits --json
    """
    own, others = with_bus(directory, output, _read_limits)
    rows = [(limit.name, _shown(limit.value), limit.source) for limit in own.limits]
    output.result(_plain(own, others), table(("limit", "value", "from"), rows))
    if output.json:
        return
    if own.problem is not None:
        output.note(one_line(own.problem))
    for process in others:
        for limit in process.differences(own):
            output.note(f"process {process.pid} applies {limit.name} {_shown(limit.value)} (from: {limit.source})")


async def _read_limits(bus: Bus) -> tuple[ProcessLimits, list[ProcessLimits]]:
    import os

    from posthouse.bus.limits_in_force import read_process_limits

    found = read_process_limits(bus.path / "procs")
    (own,) = [process for process in found if process.pid == os.getpid()]
    return own, [process for process in found if process.pid != own.pid]


def _plain(own: ProcessLimits, others: list[ProcessLimits]) -> dict[str, Any]:
    import msgspec

    differing = [
        {"pid": process.pid, "differs": process.differences(own), "problem": process.problem} for process in others
    ]
    limits: dict[str, Any] = msgspec.to_builtins({"limits": own.limits, "problem": own.problem, "processes": differing})
    return limits


def _shown(value: Any) -> str:
    import json

    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def broken_files(directory: Path) -> Iterator[tuple[str, PosthouseError]]:
    """Yield each invalid operator file (access-rules.json, config.json) of a data directory, with its error."""
    from posthouse.bus.operator_files import read_regular_file
    from posthouse.model.access_rules import parse_rules
    from posthouse.model.errors import PosthouseError, error
    from posthouse.model.reliability import Reliability, merge_reliability

    readers: dict[str, Callable[[bytes], object]] = {
        "access-rules.json": parse_rules,
        "config.json": lambda data: merge_reliability(Reliability(), data),
    }
    for name, read in readers.items():
        try:
            data = read_regular_file(directory / name)
            if data is not None:
                read(data)
        except OSError as failure:
            yield name, error("config_unreadable", path=str(directory / name), reason=failure.strerror or str(failure))
        except PosthouseError as failure:
            yield name, failure
