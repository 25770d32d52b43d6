"""`posthouse pipeline`: query the lake, keep a session warm, and audit the whole history.

Arguments and sources are checked before Spark starts. The verbs of pipeline_run, pipeline_erase, pipeline_publish,
pipeline_report and pipeline_show are registered here too.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.commands import noun
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_erase import erase
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, PipelineOptions, Publishers
from posthouse.cli.pipeline_publish import archive, publish, replay
from posthouse.cli.pipeline_report import audit_with, demo, report, whatif
from posthouse.cli.pipeline_run import compact, run
from posthouse.cli.pipeline_show import export, show
from posthouse.model.codes.spec import Exit

if TYPE_CHECKING:
    from posthouse.pipeline.audit.audit import Report
    from posthouse.pipeline.query import Answer


def query(
    sql: Annotated[str, Parameter(help="SQL query. SHOW TABLES lists the tables, DESCRIBE TABLE_NAME its columns.")],
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1), help="Maximum number of rows.")] = 1000,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Query the lake with SQL, in the session of `posthouse pipeline serve` if there is one, else in a new one.

    For example:

        posthouse pipeline query 'SHOW TABLES'
        posthouse pipeline query 'SELECT day, sum(messages)
            FROM gold_traffic_hourly GROUP BY day ORDER BY day'
    """
    from posthouse.pipeline.serve import ask_server

    lake = pipeline_options.open_lake()
    found = ask_server(lake.path, sql, limit)
    _show_rows(output, found or _query_in_new_session(pipeline_options, sql, limit))


def _query_in_new_session(pipeline_options: PipelineOptions, sql: str, limit: int) -> Answer:
    from posthouse.pipeline.query import ask, refuse_empty

    lake = pipeline_options.open_lake()
    refuse_empty(lake)  # fail before Spark starts
    spark = pipeline_options.session(is_brief=True)
    try:
        return ask(spark, lake, sql, limit)
    finally:
        spark.stop()


def _show_rows(output: Output, answer: Answer) -> None:
    if output.json:
        for row in answer.rows:
            output.result(dict(zip(answer.columns, row, strict=True)), "")
    else:
        output.result(None, table(answer.columns, answer.rows))
    if answer.is_cut:
        output.note(f"only the first {len(answer.rows)} rows are shown; raise --limit for more")


def serve(*, pipeline_options: PipelineOptions = DEFAULT_PIPELINE, output: Output = PLAIN) -> None:
    """Keep a Spark session running and answer requests on a socket in the lake's directory, until Ctrl-C.

    `query`, `report`, `audit` and `whatif` use this session automatically; it serves several commands at a time.

    For example:

        posthouse pipeline serve &
        posthouse pipeline query 'SELECT count(*) FROM bronze_journal'
    """
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.serve import FAIR, QueryServer

    refuse_empty(pipeline_options.open_lake())  # fail before Spark starts
    spark = pipeline_options.session(settings=FAIR)
    try:
        spark.range(1).count()  # the first job is slow: run it before the first query
        server = QueryServer(spark, pipeline_options.open_lake())
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: threading.Thread(target=server.close).start())
        output.result({"event": "ready", "socket": str(server.path)}, f"ready on {server.path}")
        server.serve()
    finally:
        spark.stop()


_BANNER = """posthouse pipeline shell: `spark` is the session, `lake` the lake, `sql("...")` runs a query.
Tables: {names}"""


def shell(*, pipeline_options: PipelineOptions = DEFAULT_PIPELINE, output: Output = PLAIN) -> None:
    """Open a Python shell in which each table is a DataFrame with the table's name.

    For example:

        posthouse pipeline shell
        echo 'silver_messages.count()' | posthouse pipeline shell --lake /data/lake
    """
    import code

    from posthouse.pipeline.connector.data_source import register_source
    from posthouse.pipeline.query import refuse_empty

    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    spark = pipeline_options.session()
    try:
        register_source(spark)
        names = lake.register(spark)
        known = {name: spark.table(name) for name in names}
        banner = _BANNER.format(names=", ".join(names))
        code.interact(banner=banner, local=known | {"spark": spark, "lake": lake, "sql": spark.sql}, exitmsg="")
    finally:
        spark.stop()


_SHOWN = 50  # findings; --json prints all of them


def audit(
    *,
    derived: Annotated[
        bool, Parameter(negative=(), help="Also recompute silver and gold from bronze, and compare.")
    ] = False,
    publishers: Publishers = None,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> int:
    """Re-derive every id, verify every signature, replay deliveries and locks, and recompute every Merkle root.

    Audits the lake if there is one; with --source it also compares the stores with it. Without a lake it audits the
    sources. Roots published by nodes other than the trusted publishers are findings. Runs in the session of
    `posthouse pipeline serve` if there is one. Nothing is changed. The exit code is 1 if there is any finding.

    For example:

        posthouse pipeline audit
        posthouse pipeline audit --derived
        posthouse pipeline audit --source ~/.posthouse/relay --lake /data/lake
        posthouse pipeline audit --source relay.db --json
    """
    report = audit_with(pipeline_options, publishers, is_derived=derived)
    _show_audit(output, report)
    return Exit.REFUSED if report.total else Exit.OK


def _show_audit(output: Output, report: Report) -> None:
    from posthouse.pipeline.audit.finding import CODES, Finding

    rows = report.findings if output.json else report.findings[:_SHOWN]
    if output.json:
        for each in rows:
            output.result(each._asdict(), "")
    elif rows:
        output.result(None, table(Finding._fields, rows))
        output.result(
            None, table(("findings", "code", "meaning"), [(n, c, CODES[c]) for c, n in sorted(report.counts.items())])
        )
    audited = f"{report.records:,} records, {report.events:,} events and {report.seals:,} seals"
    if report.derived:
        audited += f", {report.derived} tables recomputed"
    shown = f"{report.total:,} findings in {audited}" if report.total else f"{audited}: no findings"
    checked = {name: getattr(report, name) for name in ("records", "events", "seals", "derived")}
    value = checked | {"findings": report.total, "codes": dict(report.counts)}
    output.result(value, shown)


app = noun(
    "pipeline", "Build a lake of the whole history on Spark; audit it, query it, report on it and replay from it."
)
app.command(run, name="run")
app.command(compact, name="compact")
app.command(erase, name="erase")
app.command(query, name="query")
app.command(show, name="show")
app.command(shell, name="shell")
app.command(serve, name="serve")
app.command(audit, name="audit")
app.command(report, name="report")
app.command(whatif, name="whatif")
app.command(demo, name="demo")
app.command(export, name="export")
app.command(publish, name="publish")
app.command(replay, name="replay")
app.command(archive, name="archive")
