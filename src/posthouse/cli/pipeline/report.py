"""`posthouse pipeline report`: the history of a lake as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.pipeline.place import HERE, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.report.figures import AuditSummary

FILE_NAME = "report.html"


def report(
    *,
    to: Annotated[Path | None, Parameter(help="The file to write [default: report.html in the lake].")] = None,
    open: Annotated[bool, Parameter(negative=(), help="Show it in the browser.")] = False,  # noqa: A002 - the flag's word
    audit: Annotated[bool, Parameter(help="Audit the lake too, and say what was found.")] = True,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Write one self-contained HTML page about everything in the lake: it needs no network and holds no script.

    For example:

        posthouse pipeline report --open
        posthouse pipeline report --to /tmp/week.html --no-audit
    """
    from posthouse.pipeline.query import refuse_empty

    lake = place.open_lake()
    refuse_empty(lake)
    spark = place.session()
    try:
        path = write_report(spark, lake, to, is_audited=audit)
    finally:
        spark.stop()
    output.answer({"path": path}, str(path))
    if open:
        show_page(path)


def write_report(spark: SparkSession, lake: Lake, to: Path | None, *, is_audited: bool) -> Path:
    """Write the page and return where it is."""
    from posthouse.files import write_atomic
    from posthouse.model.clock import system_clock
    from posthouse.pipeline.report import gather_figures, render_page

    summary = summarise_audit(spark, lake) if is_audited else None
    page = render_page(gather_figures(spark, lake, system_clock(), summary))
    path = (lake.path / FILE_NAME if to is None else to).absolute()
    write_atomic(path, page.encode())
    return path


def summarise_audit(spark: SparkSession, lake: Lake) -> AuditSummary:
    """Audit the lake and return what the page says about it."""
    from posthouse.pipeline.audit import CODES
    from posthouse.pipeline.audit.frames import audit_frames
    from posthouse.pipeline.audit.sources import lake_frames
    from posthouse.pipeline.report.figures import AuditSummary, Ranked

    audited = audit_frames(lake_frames(spark, lake))
    counts = sorted(audited.counts.items(), key=lambda item: (-item[1], item[0]))
    return AuditSummary(audited.records, tuple(Ranked(code, count, CODES.get(code, "")) for code, count in counts))


def show_page(path: Path) -> None:
    """Open a file in the browser of this desktop."""
    import webbrowser

    webbrowser.open(path.as_uri())
