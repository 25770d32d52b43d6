"""`posthouse pipeline audit`: prove the whole history again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.model.codes.spec import Exit

if TYPE_CHECKING:
    from posthouse.pipeline.audit.audit import Report

_SHOWN = 50  # findings; all of them come with --json


def audit(*, place: Place = HERE, output: Output = PLAIN) -> int:
    """Re-derive every id, verify every signature, replay deliveries and locks, and recompute every Merkle root.

    The lake is audited if there is one; with --source the stores are compared with it too. Without a lake the sources
    are audited as they are. Nothing is changed. Any finding makes the exit code 1.

    For example:

        posthouse pipeline audit
        posthouse pipeline audit --source ~/.posthouse/relay --lake /data/lake
        posthouse pipeline audit --source relay.db --json
    """
    from posthouse.cli.pipeline.sources import open_sources
    from posthouse.pipeline.audit.audit import audit as run

    lake = place.open_lake()
    has_lake = bool(lake.names())
    sources = open_sources(place) if place.source or not has_lake else []
    spark = place.session()
    try:
        report = run(spark, lake if has_lake else None, sources)
    finally:
        spark.stop()
    _answer(output, report)
    return Exit.REFUSED if report.total else Exit.OK


def _answer(output: Output, report: Report) -> None:
    from posthouse.pipeline.audit.finding import CODES, Finding

    rows = report.findings if output.json else report.findings[:_SHOWN]
    if output.json:
        for each in rows:
            output.answer(each._asdict(), "")
    elif rows:
        output.answer(None, table(Finding._fields, rows))
        output.answer(
            None, table(("findings", "code", "meaning"), [(n, c, CODES[c]) for c, n in sorted(report.counts.items())])
        )
    looked_at = f"{report.records:,} records and {report.events:,} events"
    shown = f"{report.total:,} findings in {looked_at}" if report.total else f"{looked_at}: nothing is wrong"
    value = {"records": report.records, "events": report.events, "findings": report.total, "codes": dict(report.counts)}
    output.answer(value, shown)
