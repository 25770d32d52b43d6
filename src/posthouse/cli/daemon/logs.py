"""`posthouse daemon logs`: the end of the daemon's log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import error

LOG_NAME = "daemon.log"
_LEADING = ("timestamp", "level", "event")


def logs(
    *,
    lines: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000), help="How many of the last lines.")] = 50,
    level: Annotated[str | None, Parameter(help="Only this level, such as warning or error.")] = None,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Show the end of the daemon's log, also when the daemon does not run.

    For example:

        posthouse daemon logs
        posthouse daemon logs --lines 200 --level error --json
    """
    path = near.place().directory / LOG_NAME
    if not path.exists():
        raise error("usage", text=f"there is no {path}", hint="Give the daemon's directory with --dir.")
    chosen = (entry for entry in _entries(path) if level is None or entry.get("level") == level)
    for entry in deque(chosen, maxlen=lines):
        output.answer(entry, _line(entry))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of the log; a line that a crash tore is told as it is."""
    import msgspec

    with path.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except ValueError:
                yield {"event": line.decode(errors="replace").rstrip("\n")}


def _line(entry: dict[str, Any]) -> str:
    leading = [str(entry[name]) for name in _LEADING if name in entry]
    rest = [f"{name}={value}" for name, value in entry.items() if name not in _LEADING]
    return "  ".join(leading + rest)
