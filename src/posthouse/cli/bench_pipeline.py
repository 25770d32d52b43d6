"""`posthouse bench pipeline`: source, bronze ingest, audit's signatures, and how cost grows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.bench_terms import BenchDir, Quick, show_required
from posthouse.cli.console import PLAIN, Output


def pipeline(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    growth: Annotated[
        tuple[int, ...],
        Parameter(
            negative=(),
            consume_multiple=True,
            show_default=False,
            help="Only this: whole runs over histories of so many rows, with the memory they take.",
        ),
    ] = (),
    output: Output = PLAIN,
) -> None:
    """Measure the pipeline on two cores of this machine, in one warm session of Spark.

    Records are read from a relay's file. Bronze ingest counts everything up to the commit: files, statistics and
    Merkle roots. Signatures are held against bare libsodium in the same run.

    For example:

        posthouse bench pipeline
        posthouse bench pipeline --quick --json
        posthouse bench pipeline --growth 100000 1000000 10000000 --json
    """
    from posthouse.bench.pipeline.report import measure_pipeline, measure_sizes
    from posthouse.bench.pipeline.terms import QUICK, Scale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        if growth:
            report = measure_sizes(Path(scratch), growth, output.note)
        else:
            report = measure_pipeline(Path(scratch), QUICK if quick else Scale(), output.note)
    output.answer(report, show_required(report))
