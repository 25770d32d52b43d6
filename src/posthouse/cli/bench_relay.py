"""`posthouse bench relay`: a relay process under load, against what the bare libraries do."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def relay(
    *,
    directory: Annotated[
        Path | None, Parameter(name="--dir", help="Where to measure; the disk there decides. Removed afterwards.")
    ] = None,
    quick: Annotated[bool, Parameter(negative=(), show_default=False, help="A first look, with far less of all.")] = (
        False
    ),
    output: Output = PLAIN,
) -> None:
    """Measure accepting, fan-out and queries of a relay; client and relay are separate processes.

    Every answer comes after the sync of its commit. Rates and caps are raised by settings and left switched on. The
    store of a million events is made once and kept in the temporary directory.

    For example:

        posthouse bench relay
        posthouse bench relay --quick --json
    """
    from posthouse.bench.relay.report import measure_relay
    from posthouse.bench.relay.terms import QUICK, Scale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_relay(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)
