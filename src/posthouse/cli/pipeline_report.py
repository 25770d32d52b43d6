"""`posthouse pipeline report`, `whatif` and `demo`: a report of the lake, a simulation of other rules, a demo.

None of them changes a source. The report is one self-contained HTML file without scripts. `demo` works in its own
directory with the real relay, locks and bus.
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
    to: Annotated[Path | None, Parameter(help="File to write [default: report.html in the lake].")] = None,
    open: Annotated[bool, Parameter(negative=(), help="Open the report in the browser.")] = False,  # noqa: A002 - the name of the option
    audit: Annotated[bool, Parameter(help="Also audit the lake and include the findings.")] = True,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Write a report of the lake as one HTML page, which needs no network and has no scripts.

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
    """Write the report and return its path."""
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
    """Audit the lake and return the summary for the report."""
    from posthouse.pipeline.audit.audit import lake_frames
    from posthouse.pipeline.audit.finding import CODES
    from posthouse.pipeline.audit.spark_audit import audit_frames
    from posthouse.pipeline.report.figures import AuditSummary, Ranked

    audited = audit_frames(lake_frames(spark, lake))
    counts = sorted(audited.counts.items(), key=lambda item: (-item[1], item[0]))
    return AuditSummary(audited.records, tuple(Ranked(code, count, CODES.get(code, "")) for code, count in counts))


def show_page(path: Path) -> None:
    """Open a file in the browser."""
    import webbrowser

    webbrowser.open(path.as_uri())


def whatif(
    *,
    config: Annotated[Path | None, Parameter(help="A bus config.json with the limits to simulate.")] = None,
    rules: Annotated[Path | None, Parameter(help="An access-rules.json to simulate.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows per table.")] = 50,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Simulate other bus rules on the whole history in the lake and compare the outcome with what happened.

    Shows the accepted messages that would have been refused, and the actual and simulated number of refusals per code,
    key and minute. Nothing is changed.

    For example:

        posthouse pipeline whatif --config new.json
        posthouse pipeline whatif --config new.json --rules access-rules.json --json
    """
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.whatif.proposed_rules import read_proposal
    from posthouse.pipeline.whatif.simulation import bus_journal, simulate_history

    if config is None and rules is None:
        raise error("usage", text="no rules to simulate", hint="Give --config FILE, --rules FILE, or both.")
    proposal = read_proposal(config, rules)
    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    spark = pipeline_options.session()
    try:
        show_whatif(simulate_history(bus_journal(spark, lake), proposal), output, limit)
    finally:
        spark.stop()


def show_whatif(simulation: Simulation, output: Output, limit: int) -> None:
    """Show the differences between the history and the simulation."""
    from pyspark.sql import functions as f

    simulation.attempts.cache()
    totals = simulation.refusals.groupBy("code").agg(f.sum("was").alias("was"), f.sum("would").alias("would"))
    refused = simulation.accepted.where("would IS NOT NULL")
    changed = simulation.refusals.where("was <> would")
    _show_table(output, "totals", ("code", "was", "would"), totals.orderBy("code").collect())
    columns = ("created_ms", "sender", "subject", "id", "would", "text")
    rows = refused.orderBy("created_ms", "id", "subject").select(*columns).limit(limit).collect()
    _show_table(output, "accepted", columns, rows)
    keys = ("code", "key", "minute", "was", "would")
    _show_table(output, "refusals", keys, changed.orderBy("minute", "code", "key").select(*keys).limit(limit).collect())
    count = simulation.accepted.agg(f.count("*"), f.count("would")).first()
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
    "totals": "Refusals by code, actual and simulated:",
    "accepted": "Accepted messages that would have been refused:",
    "refusals": "Refusals per minute that differ:",
}


def _shown(column: str, value: object) -> object:
    if column == "created_ms" and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if column == "minute" and isinstance(value, int):
        return datetime.fromtimestamp(value * 60, UTC).strftime("%Y-%m-%d %H:%M")
    return value


def demo(
    *,
    agents: Annotated[int, Parameter(help="Number of agents.")] = 12,
    messages: Annotated[int, Parameter(help="Approximate number of messages.")] = 3_000,
    seed: Annotated[int, Parameter(help="Random seed: the same seed gives the same history.")] = 1,
    to: Annotated[Path | None, Parameter(help="Directory for stores and lake [default: a new directory].")] = None,
    open: Annotated[bool, Parameter(help="Open the report in the browser.")] = True,  # noqa: A002 - the name of the option
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Generate a week of agent traffic with the real relay, locks and bus, and run the whole pipeline on it.

    The history has threads, offline periods, failures, lock contention and costs. The pipeline builds the lake, audits
    it, simulates mailboxes of half the size and writes the report. Your own stores are neither read nor changed.

    For example:

        posthouse pipeline demo
        posthouse pipeline demo --agents 20 --messages 20000 --no-open
    """
    from posthouse.cli.log import log_to_stderr
    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.demo.demo_history import make_history
    from posthouse.pipeline.run.lake_run import bring_up_to_date
    from posthouse.pipeline.whatif.simulation import bus_journal, simulate_history

    log_to_stderr(load_settings({"log.level": "warning"}))  # at level info the relay of the demo logs every hour
    directory = Path(tempfile.mkdtemp(prefix="posthouse-demo-")) if to is None else to.absolute()
    output.note(f"generating {messages:,} messages in {directory}")
    history = make_history(directory, seed, agents, messages)
    pipeline_options = replace(pipeline_options, lake=pipeline_options.lake or str(directory / "lake"))
    lake, spark = pipeline_options.open_lake(), pipeline_options.session()
    try:
        done = bring_up_to_date(spark, lake, [Access(source) for source in history.sources])
        output.note(f"{done.rows:,} rows are in the lake; simulating mailboxes of half the size")
        show_whatif(simulate_history(bus_journal(spark, lake), _halved()), output, limit=5)
        path = write_report(spark, lake, None, is_audited=True)
    finally:
        spark.stop()
    output.result({"path": path, "lake": lake.location, "sources": history.sources}, f"report: {path}")
    if open:
        show_page(path)


def _halved() -> Proposal:
    """Return the rules of the demo with mailboxes of half the size."""
    from msgspec.structs import replace as changed

    from posthouse.model.access_rules import AccessRules
    from posthouse.pipeline.demo.bus_scene import CYCLE_RULE, RELIABILITY, RULES
    from posthouse.pipeline.whatif.proposed_rules import BudgetProposal, Proposal

    pressure = RELIABILITY.backpressure
    halved = changed(pressure, max_mailbox_size=pressure.max_mailbox_size // 2)
    return Proposal(
        changed(RELIABILITY, backpressure=halved), AccessRules(RULES), BudgetProposal(cycle_rule=CYCLE_RULE)
    )
