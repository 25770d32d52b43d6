"""`posthouse bench drain`: how fast queues empty, with readers in a process of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def drain(
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
    ] = None,
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")] = (
        False
    ),
    output: Output = PLAIN,
) -> None:
    """Measure readers that find a backlog: how fast they receive and confirm it; relay and readers are processes.

    Every confirmation is answered after the sync of its commit, with up to 50 ids under one signature. The window is
    500, frames are lists. Rates and caps are raised by settings and left switched on. The readers do not verify
    signatures here.

    For example:

        posthouse bench drain
        posthouse bench drain --quick --json
    """
    from posthouse.bench.drain.report import measure_drain
    from posthouse.bench.drain.terms import QUICK, Scale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_drain(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
