"""`posthouse pipeline report`, `whatif` and `demo`: a report of the lake, a simulation of other rules, a demo.

None of them changes a source. The report is one self-contained HTML file without scripts. `demo` works in its own
directory with the real relay, locks and bus.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import (
    DEFAULT_PIPELINE,
    WHOLE,
    PeriodOptions,
    PipelineOptions,
    PricesFile,
    Publishers,
    open_sources,
    read_content_of,
)
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.model.usage import Prices
    from posthouse.pipeline.audit.audit import Report
    from posthouse.pipeline.gold_reader import Selection
    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.whatif.proposed_rules import Proposal


FILE_NAME = "report.html"


def report(
    *,
    to: Annotated[Path | None, Parameter(help="File to write [default: report.html in the lake].")] = None,
    open: Annotated[bool, Parameter(negative=(), help="Open the report in the browser.")] = False,  # noqa: A002 - the name of the option
    audit: Annotated[bool, Parameter(help="Also audit the lake and include the findings.")] = True,
    publishers: Publishers = None,
    prices: PricesFile = None,
    period: PeriodOptions = WHOLE,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Write a report of the lake as one HTML page, which needs no network and has no scripts.

    With --since it compares the period with the preceding one of the same length. Only the audit needs Spark, and it
    runs in the session of `posthouse pipeline serve` if there is one.

    For example:

        posthouse pipeline report --open
        posthouse pipeline report --since 7d --to /tmp/week.html
        posthouse pipeline report --since 2026-11-01 --until 2026-11-15 --no-audit
        posthouse pipeline report --agent claude@laptop
    """
    from posthouse.pipeline.query import refuse_empty

    lake, selection = pipeline_options.open_lake(), period.selection()
    refuse_empty(lake)
    table_of_prices = pipeline_options.prices(prices)
    audited = audit_with(pipeline_options, publishers, is_brief=True) if audit else None
    path = write_report(lake, to, audited, selection, table_of_prices)
    output.result({"path": path}, str(path))
    if open:
        show_page(path)


def audit_with(
    pipeline_options: PipelineOptions,
    publishers: str | None = None,
    *,
    is_derived: bool = False,
    is_brief: bool = False,
) -> Report:
    """Audit the lake and the given sources, in the session of a running server, or else in a new one."""
    from posthouse.pipeline.audit.audit import Report
    from posthouse.pipeline.serve import AuditRequest, SourceRequest, ask_server_for, run_audit

    lake = pipeline_options.open_lake()
    sources = open_sources(pipeline_options) if pipeline_options.source or not lake.names() else []
    request = AuditRequest(
        [SourceRequest(each.url, each.token, each.tls_ca) for each in sources],
        is_derived,
        pipeline_options.publishers(publishers),
        pipeline_options.own_node(),
    )
    found = ask_server_for(lake.path, audit=request)
    if found is None:
        spark = pipeline_options.session(is_brief=is_brief)
        try:
            found = run_audit(spark, lake, request)
        finally:
            spark.stop()
    return Report.of_value(found)


def write_report(
    lake: Lake,
    to: Path | None,
    audited: Report | None,
    selection: Selection | None = None,
    prices: Prices | None = None,
) -> Path:
    """Write the report and return its path."""
    from posthouse.files import private_dir, write_atomic
    from posthouse.model.clock import system_clock
    from posthouse.pipeline.report.gather_figures import gather_figures
    from posthouse.pipeline.report.page import render_page

    page = render_page(gather_figures(lake, system_clock(), audited, selection, prices))
    path = (private_dir(lake.path) / FILE_NAME if to is None else to).absolute()
    write_atomic(path, page.encode())
    return path


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
    key and minute. Runs in the session of `posthouse pipeline serve` if there is one. Nothing is changed.

    For example:

        posthouse pipeline whatif --config new.json
        posthouse pipeline whatif --config new.json --rules access-rules.json --json
    """
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.serve import WhatIfRequest, ask_server_for, run_whatif
    from posthouse.pipeline.whatif.proposed_rules import parse_proposal

    if config is None and rules is None:
        raise error("usage", text="no rules to simulate", hint="Give --config FILE, --rules FILE, or both.")
    request = WhatIfRequest(_content(config), _content(rules), limit)
    parse_proposal(request.config, request.rules)  # fail before Spark starts
    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    found = ask_server_for(lake.path, whatif=request)
    if found is None:
        spark = pipeline_options.session()
        try:
            found = run_whatif(spark, lake, request)
        finally:
            spark.stop()
    show_whatif(found, output)


def _content(path: Path | None) -> bytes | None:
    return None if path is None else read_content_of(path)


def show_whatif(found: Mapping[str, Any], output: Output) -> None:
    """Show the differences between the history and a simulation, as `compare` returns them."""
    from posthouse.pipeline.whatif.proposed_rules import COMPARED

    for kind, columns in COMPARED.items():
        _show_table(output, kind, columns, found[kind])
    output.note(f"{found['would_be_refused']:,} of {found['messages']:,} accepted messages would have been refused")


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
    from posthouse.pipeline.audit.audit import Report
    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.demo.bus_scene import is_planned
    from posthouse.pipeline.demo.demo_history import make_history
    from posthouse.pipeline.run.lake_run import bring_up_to_date
    from posthouse.pipeline.serve import AuditRequest, run_audit
    from posthouse.pipeline.whatif.simulation import bus_journal, compare, simulate_history

    # at level info the relay of the demo logs every hour
    log_to_stderr(load_settings({"log.level": "warning"}), drop=is_planned)
    directory = Path(tempfile.mkdtemp(prefix="posthouse-demo-")) if to is None else to.absolute()
    output.note(f"generating {messages:,} messages in {directory}")
    history = make_history(directory, seed, agents, messages)
    pipeline_options = replace(pipeline_options, lake=pipeline_options.lake or str(directory / "lake"))
    lake, spark = pipeline_options.open_lake(), pipeline_options.session()
    try:
        done = bring_up_to_date(spark, lake, [Access(source) for source in history.sources])
        output.note(f"{done.rows:,} rows are in the lake; simulating mailboxes of half the size")
        show_whatif(compare(simulate_history(bus_journal(spark, lake), _halved()), limit=5), output)
        audited = Report.of_value(run_audit(spark, lake, AuditRequest()))
    finally:
        spark.stop()
    path = write_report(lake, None, audited)
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
