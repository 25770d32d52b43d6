"""`posthouse pipeline report`, `whatif` and `demo`: the lake as a page, as a comparison, and on made-up data.

None of them changes a source. The page is one self-contained HTML file without scripts. `demo` works in a directory
of its own with the real relay, locks and bus.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, PipelineOptions
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.report.figures import AuditSummary
    from posthouse.pipeline.whatif.proposed_rules import Proposal
    from posthouse.pipeline.whatif.simulation import Simulation


FILE_NAME = "report.html"


def report(
    *,
    to: Annotated[Path | None, Parameter(help="The file to write [default: report.html in the lake].")] = None,
    open: Annotated[bool, Parameter(negative=(), help="Show it in the browser.")] = False,  # noqa: A002 - the flag's word
    audit: Annotated[bool, Parameter(help="Audit the lake too, and say what was found.")] = True,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Write one self-contained HTML page about everything in the lake: it needs no network and holds no script.

    For example:

        posthouse pipeline report --open
        posthouse pipeline report --to /tmp/week.html --no-audit
    """
    from posthouse.pipeline.query import refuse_empty

    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    spark = pipeline_options.session()
    try:
        path = write_report(spark, lake, to, is_audited=audit)
    finally:
        spark.stop()
    output.result({"path": path}, str(path))
    if open:
        show_page(path)


def write_report(spark: SparkSession, lake: Lake, to: Path | None, *, is_audited: bool) -> Path:
    """Write the page and return where it is."""
    from posthouse.files import write_atomic
    from posthouse.model.clock import system_clock
    from posthouse.pipeline.report.gather_figures import gather_figures
    from posthouse.pipeline.report.page import render_page

    summary = summarise_audit(spark, lake) if is_audited else None
    page = render_page(gather_figures(spark, lake, system_clock(), summary))
    path = (lake.path / FILE_NAME if to is None else to).absolute()
    write_atomic(path, page.encode())
    return path


def summarise_audit(spark: SparkSession, lake: Lake) -> AuditSummary:
    """Audit the lake and return what the page says about it."""
    from posthouse.pipeline.audit.audit import lake_frames
    from posthouse.pipeline.audit.finding import CODES
    from posthouse.pipeline.audit.spark_audit import audit_frames
    from posthouse.pipeline.report.figures import AuditSummary, Ranked

    audited = audit_frames(lake_frames(spark, lake))
    counts = sorted(audited.counts.items(), key=lambda item: (-item[1], item[0]))
    return AuditSummary(audited.records, tuple(Ranked(code, count, CODES.get(code, "")) for code, count in counts))


def show_page(path: Path) -> None:
    """Open a file in the browser of this desktop."""
    import webbrowser

    webbrowser.open(path.as_uri())


def whatif(
    *,
    config: Annotated[Path | None, Parameter(help="A config.json of a bus, with the limits to try.")] = None,
    rules: Annotated[Path | None, Parameter(help="An access-rules.json to try.")] = None,
    limit: Annotated[int, Parameter(help="How many rows of each table to show at most.")] = 50,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Run the bus's own rules over the whole history in the lake and compare with what happened.

    Shows accepted messages that would have been refused, row by row, and refusals per code, key and minute: how many
    there were and how many there would have been. Nothing is changed.

    For example:

        posthouse pipeline whatif --config new.json
        posthouse pipeline whatif --config new.json --rules access-rules.json --json
    """
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.whatif.proposed_rules import read_proposal
    from posthouse.pipeline.whatif.simulation import bus_journal, simulate_history

    if config is None and rules is None:
        raise error("usage", text="name what to try", hint="Give --config FILE, --rules FILE, or both.")
    proposal = read_proposal(config, rules)
    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    spark = pipeline_options.session()
    try:
        show_whatif(simulate_history(bus_journal(spark, lake), proposal), output, limit)
    finally:
        spark.stop()


def show_whatif(judgement: Simulation, output: Output, limit: int) -> None:
    """Write what would have been different."""
    from pyspark.sql import functions as f

    judgement.attempts.cache()
    totals = judgement.refusals.groupBy("code").agg(f.sum("was").alias("was"), f.sum("would").alias("would"))
    refused = judgement.accepted.where("would IS NOT NULL")
    changed = judgement.refusals.where("was <> would")
    _show_table(output, "totals", ("code", "was", "would"), totals.orderBy("code").collect())
    columns = ("created_ms", "sender", "subject", "id", "would", "text")
    rows = refused.orderBy("created_ms", "id", "subject").select(*columns).limit(limit).collect()
    _show_table(output, "accepted", columns, rows)
    keys = ("code", "key", "minute", "was", "would")
    _show_table(output, "refusals", keys, changed.orderBy("minute", "code", "key").select(*keys).limit(limit).collect())
    count = judgement.accepted.agg(f.count("*"), f.count("would")).first()
    assert count is not None
    output.note(f"{count[1]:,} of {count[0]:,} accepted messages would have been refused")


def _show_table(output: Output, kind: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if output.json:
        for row in rows:
            output.result({"table": kind} | dict(zip(columns, row, strict=True)), "")
    elif rows:
        output.note(_TITLES[kind])
        output.result(
            None, table(columns, [[_shown(*cell) for cell in zip(columns, row, strict=True)] for row in rows])
        )


_TITLES = {
    "totals": "Refusals by code, as it was and as it would have been:",
    "accepted": "Accepted messages that would have been refused:",
    "refusals": "Refusals per minute that would have been others:",
}


def _shown(column: str, value: object) -> object:
    if column == "created_ms" and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if column == "minute" and isinstance(value, int):
        return datetime.fromtimestamp(value * 60, UTC).strftime("%Y-%m-%d %H:%M")
    return value


def demo(
    *,
    agents: Annotated[int, Parameter(help="How many agents there are.")] = 12,
    messages: Annotated[int, Parameter(help="About how many messages they send.")] = 3_000,
    seed: Annotated[int, Parameter(help="The same number tells the same story.")] = 1,
    to: Annotated[Path | None, Parameter(help="Where to put stores and lake [default: a new directory].")] = None,
    open: Annotated[bool, Parameter(help="Show the report in the browser.")] = True,  # noqa: A002 - the flag's word
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Make a week of a company of agents with the real relay, locks and bus, then run everything on it.

    Threads, offline spells, failures, fights for locks and costs; then the lake, the audit, a what-if with half the
    mailboxes, and the report. Nothing of yours is read or changed.

    For example:

        posthouse pipeline demo
        posthouse pipeline demo --agents 20 --messages 20000 --no-open
    """
    from posthouse.cli.log import log_to_stderr
    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.demo.demo_history import make_history
    from posthouse.pipeline.run.lake_run import bring_up_to_date
    from posthouse.pipeline.whatif.simulation import bus_journal, simulate_history

    log_to_stderr(load_settings({"log.level": "warning"}))  # the relay of the story tells of each hour
    directory = Path(tempfile.mkdtemp(prefix="posthouse-demo-")) if to is None else to.absolute()
    output.note(f"making a history of {messages:,} messages in {directory}")
    history = make_history(directory, seed, agents, messages)
    pipeline_options = replace(pipeline_options, lake=pipeline_options.lake or directory / "lake")
    lake, spark = pipeline_options.open_lake(), pipeline_options.session()
    try:
        done = bring_up_to_date(spark, lake, [Access(source) for source in history.sources])
        output.note(f"{done.rows:,} rows are in the lake; what if mailboxes held half as much?")
        show_whatif(simulate_history(bus_journal(spark, lake), _halved()), output, limit=5)
        path = write_report(spark, lake, None, is_audited=True)
    finally:
        spark.stop()
    output.result({"path": path, "lake": lake.path, "sources": history.sources}, f"the report is {path}")
    if open:
        show_page(path)


def _halved() -> Proposal:
    """Return the rules of the demo with half the room in each mailbox."""
    from msgspec.structs import replace as changed

    from posthouse.model.access_rules import AccessRules
    from posthouse.pipeline.demo.bus_scene import CYCLE_RULE, RELIABILITY, RULES
    from posthouse.pipeline.whatif.proposed_rules import BudgetProposal, Proposal

    pressure = RELIABILITY.backpressure
    halved = changed(pressure, max_mailbox_size=pressure.max_mailbox_size // 2)
    return Proposal(
        changed(RELIABILITY, backpressure=halved), AccessRules(RULES), BudgetProposal(cycle_rule=CYCLE_RULE)
    )
