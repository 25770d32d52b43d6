"""`posthouse bench send`: messages through the daemons of two hosts, against bare commits."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def send(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
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
    output.answer(report, show_required(report))
