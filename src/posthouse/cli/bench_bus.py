"""`posthouse bench bus`: messages through the bus, against the bare file steps it cannot avoid."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def bus(
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
    ] = None,
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")] = (
        False
    ),
    output: Output = PLAIN,
) -> None:
    """Measure the bus next to bare file operations on the same disk, in the same run.

    The floor is what a message costs without any bus: create and write a file, rename it twice, unlink it. The
    safety rules stay switched on with their limits raised, and the report prints them. The full run publishes a
    million messages.

    For example:

        posthouse bench bus
        posthouse bench bus --quick --json
    """
    from posthouse.bench.bus.report import run
    from posthouse.bench.bus.terms import QUICK, Scale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = run(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (each["name"], each["value"], f"{each['sense']} {each['bound']}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
