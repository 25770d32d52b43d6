"""`posthouse bench locks`: locks of a relay process under load, against bare commits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def locks(
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
    ] = None,
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")] = (
        False
    ),
    output: Output = PLAIN,
) -> None:
    """Measure pairs of acquire and release: one client, 16 on their own resources, 16 on one.

    Client and relay are separate processes; every answer comes after the sync of its commit.

    For example:

        posthouse bench locks
        posthouse bench locks --quick --json
    """
    from posthouse.bench.locks.report import QUICK, Scale, measure_locks

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_locks(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
