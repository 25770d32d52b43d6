"""`posthouse bench bus`: messages through the bus, against the bare file steps it cannot avoid."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def bus(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
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
    output.answer(report, show_required(report))
