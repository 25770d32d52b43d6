"""`posthouse bench relay`: a relay process under load, against what the bare libraries do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def relay(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
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
    output.answer(report, show_required(report))
