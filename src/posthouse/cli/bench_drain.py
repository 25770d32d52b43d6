"""`posthouse bench drain`: how fast queues empty, with readers in a process of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def drain(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
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
    output.answer(report, show_required(report))
