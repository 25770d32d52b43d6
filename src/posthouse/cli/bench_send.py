"""`posthouse bench send`: messages through the daemons of two hosts, against bare commits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def send(
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
    ] = None,
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")] = (
        False
    ),
    output: Output = PLAIN,
) -> None:
    """Measure sends through daemons: accepting, one at a time, from host to host, and draining a backlog.

    Relay, daemons and client are processes. Every answer comes after the sync of its commit. Rates and caps of the
    relay are raised by settings and left switched on; the report prints them.

    For example:

        posthouse bench send
        posthouse bench send --quick --json
    """
    from posthouse.bench.send.report import measure_send
    from posthouse.bench.send.terms import QUICK, Scale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_send(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
