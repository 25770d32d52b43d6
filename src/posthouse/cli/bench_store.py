"""`posthouse bench store`: the group-commit writer against bare apsw, on the disk of a directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.console import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType

Count = Annotated[int, Parameter(validator=Number(gte=1))]


def store(
    *,
    directory: Annotated[Path | None, Parameter(name="--dir")] = None,
    rounds: Count = 11,
    singles: Count = 300,
    batches: Count = 80,
    output: Output = PLAIN,
) -> None:
    """Compare durable commits through the store with bare apsw writing the same rows.

    For example:

        posthouse bench store
        posthouse bench store --dir /var/lib/posthouse --json

    Parameters
    ----------
    directory
        Where to measure; the disk there decides. A temporary directory inside it is used and removed.
    rounds
        How often both ways take turns.
    singles
        Commits per round, one caller at a time.
    batches
        Commits of 64 rows per round.
    """
    from posthouse.bench.store import measure_store

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_store(Path(scratch), rounds=rounds, singles=singles, batches=batches)
    output.answer(report, _show(report))


def _show(report: dict[str, Any]) -> RenderableType:
    rows = [
        (name, f"{r['ours_per_s']:,}/s", f"{r['bare_per_s']:,}/s", f"{r['ratio']:.2f}", r["required"], r["aim"])
        for name, r in report["results"].items()
    ]
    return table(("commits", "posthouse", "bare apsw", "ratio", "at least", "aim"), rows)
