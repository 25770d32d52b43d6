"""`posthouse bench locks`: locks of a relay process under load, against bare commits."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def locks(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
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
    output.answer(report, show_required(report))
