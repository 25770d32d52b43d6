"""`posthouse pipeline run` and `compact`: bring the lake up to date, report the run to monitoring, merge small files.

A run that fails or is killed can be repeated: no row is duplicated or missing. Arguments and sources are checked before
Spark starts. Metrics and lineage events are written for failed runs too; a run never fails because they cannot be
written.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter

from posthouse.cli.config import Settings, load_settings
from posthouse.cli.options import load_key, parse_duration
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, PipelineOptions, open_sources, relays_of
from posthouse.model.clock import system_clock
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import PosthouseError, Transient, error

if TYPE_CHECKING:
    from posthouse.journal.erase import ErasureRequest
    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.run.copy_feeds import RunStep
    from posthouse.pipeline.run.lake_run import RunReport
    from posthouse.pipeline.run.openlineage import LineageServer
    from posthouse.pipeline.run.run_metrics import RunFigures
    from posthouse.pipeline.run.upkeep import Upkeep


@Parameter(name="*")
@dataclass(frozen=True)
class MonitoringOptions:
    """The file and the server to which a run reports its result."""

    metrics_file: Annotated[
        str | None, Parameter(help="File to write with metrics of the run, for the node exporter of Prometheus.")
    ] = None
    openlineage_url: Annotated[
        str | None, Parameter(help="Server that receives OpenLineage events of the run. Default: OPENLINEAGE_URL.")
    ] = None

    def settings(self) -> Settings:
        """Return the settings; the options of this command override file and environment."""
        flags = {"pipeline.metrics_file": self.metrics_file, "pipeline.openlineage_url": self.openlineage_url}
        return load_settings(flags)


@Parameter(name="*")
@dataclass(frozen=True)
class UpkeepOptions:
    """The limits that keep a lake small."""

    retention_days: Annotated[
        int | None, Parameter(help="Days to keep logs and replaced files of bronze tables [default: 30].")
    ] = None
    derived_retention_hours: Annotated[
        int | None, Parameter(help="Hours to keep logs and replaced files of silver and gold tables [default: 1].")
    ] = None
    compact_files: Annotated[
        int | None, Parameter(help="Number of small files of the newest day that triggers a merge [default: 32].")
    ] = None

    def upkeep(self) -> Upkeep:
        """Return the values of the options, the environment and the file."""
        from posthouse.pipeline.run.upkeep import Upkeep

        settings = load_settings({f"pipeline.{name}": value for name, value in vars(self).items()})
        return Upkeep(
            retention_days=settings.integer("pipeline.retention_days"),
            derived_retention_hours=settings.integer("pipeline.derived_retention_hours"),
            compact_files=settings.integer("pipeline.compact_files"),
        )


DEFAULT_UPKEEP = UpkeepOptions()


def run(
    *,
    once: Annotated[bool, Parameter(negative=(), help="Run once; the default.")] = False,
    every: Annotated[str | None, Parameter(help="Repeat the run at this interval: 60s, 15m.")] = None,
    rebuild: Annotated[bool, Parameter(negative=(), help="Rebuild every table above bronze.")] = False,
    monitoring: MonitoringOptions = MonitoringOptions(),  # noqa: B008 - frozen
    upkeep_options: UpkeepOptions = DEFAULT_UPKEEP,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    r"""Copy new journal records into the lake, then bring every table up to date.

    A run that fails or is killed can be repeated: no row is duplicated or missing. If a source is a relay, the Merkle
    root of every new batch is published there as a signed event. With --every the command repeats until Ctrl-C or
    SIGTERM; after SIGTERM it finishes the current run. A run that fails for a temporary reason, such as a lake that
    another run is using or a relay that stopped answering, is reported and retried.

    For example:

        posthouse pipeline run
        posthouse pipeline run --source ~/.posthouse/relay --lake /data/lake
        posthouse pipeline run --source https://relay.example.org --every 60s
        posthouse pipeline run --source https://relay.example.org \
            --lake s3://bucket/lake --master spark://host:7077
    """
    if once and every is not None:
        raise error("usage", text="--once and --every cannot be combined")
    wait_s = None if every is None else parse_duration(every)
    upkeep_options.upkeep()  # fail before Spark starts
    pipeline_options.settings().integer("pipeline.batch_rows")
    open_sources(pipeline_options)
    spark = pipeline_options.session()
    try:

        def run_now(*, is_first: bool = True) -> None:
            run_once(pipeline_options, output, monitoring, upkeep_options, is_rebuild=rebuild and is_first)

        if wait_s is None:
            run_now()
        else:
            repeat(run_now, wait_s, _stop_on_sigterm(), output)
    finally:
        spark.stop()


class RunNow(Protocol):
    """Bring the lake up to date; `is_first` is True until one call has succeeded."""

    def __call__(self, *, is_first: bool) -> None: ...


def repeat(run_now: RunNow, wait_s: float, stopped: threading.Event, output: Output) -> None:
    """Run at an interval until stopped; report a transient failure, and try again in the next run.

    If a lease that a killed run left at the relay ends within the interval, the next run starts then. A relay or bucket
    that was unreachable from the start is an error, because its name may be wrong.
    """
    from posthouse.client.failures import retry_after_s

    is_first = True
    while True:
        pause_s = wait_s
        try:
            run_now(is_first=is_first)
            is_first = False
        except Transient as failure:
            if failure.code == "spark_stopped" or (is_first and failure.spec.exit is Exit.UNREACHABLE):
                raise  # this process cannot start Java again; an address that never answered may be wrong
            pause_s = min(wait_s, retry_after_s(failure) or wait_s)
            output.failure(failure)
            output.note(f"the next run starts in {pause_s:.0f} s")
        if stopped.wait(pause_s):
            return


def _stop_on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets; a second SIGTERM ends the process at once."""
    stopped = threading.Event()

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # in a thread: the interrupted main thread may hold the event's lock
        threading.Thread(target=stopped.set).start()

    signal.signal(signal.SIGTERM, stop)
    return stopped


def run_once(
    pipeline_options: PipelineOptions,
    output: Output,
    monitoring: MonitoringOptions = MonitoringOptions(),  # noqa: B008 - frozen
    upkeep_options: UpkeepOptions = DEFAULT_UPKEEP,
    *,
    is_rebuild: bool = False,
    erasure: ErasureRequest | None = None,
) -> None:
    """Bring the lake up to date once, publish the new roots, and report the result."""
    from posthouse.pipeline.run.lake_run import bring_up_to_date, publish_roots, with_relay_lock

    lake = pipeline_options.open_lake()
    relays = relays_of(pipeline_options)
    first = pipeline_options.relay_options(relays[0]).client() if relays else None
    with _monitored(lake, pipeline_options, monitoring, output) as figures, with_relay_lock(lake, first) as check_lease:

        def on_step(step: RunStep) -> None:
            figures.steps.append(step)
            _show_step(output, step)

        report = bring_up_to_date(
            pipeline_options.session(),
            lake,
            open_sources(pipeline_options),
            batch_rows=pipeline_options.settings().integer("pipeline.batch_rows"),
            is_rebuild=is_rebuild,
            upkeep=upkeep_options.upkeep(),
            on_step=on_step,
            load_key=lambda: load_key(pipeline_options.key_file),
            erasure=erasure,
            check_lease=check_lease,
        )
    published = sum(publish_roots(lake, pipeline_options.relay_options(relay).client()) for relay in relays)
    _show_run(output, report, published)


@contextmanager
def _monitored(
    lake: Lake, pipeline_options: PipelineOptions, monitoring: MonitoringOptions, output: Output
) -> Iterator[RunFigures]:
    """Report a run to the metrics file and the lineage server that the settings name."""
    from posthouse.pipeline.connector.source_access import parse_sources
    from posthouse.pipeline.run.openlineage import LineageRun
    from posthouse.pipeline.run.run_metrics import RunFigures

    clock, settings = system_clock(), monitoring.settings()
    figures = RunFigures(clock.wall_ns())
    server = _lineage_server(settings)
    sources = [address.url for address in parse_sources(pipeline_options.sources())]  # as the lake names them
    lineage = LineageRun(clock, sources, lake.location)
    _post(server, lineage.started(), output)
    try:
        yield figures
    except BaseException as failure:
        _post(server, lineage.failed(failure, figures.rows()), output)
        raise
    else:
        figures.is_successful = True
        _post(server, lineage.completed(figures.rows()), output)
    finally:
        figures.ended_ns = clock.wall_ns()
        _write_metrics(settings, lake, figures, output)


def _lineage_server(settings: Settings) -> LineageServer | None:
    from posthouse.pipeline.run.openlineage import KEY_VARIABLE, URL_VARIABLE, LineageServer

    url = settings.optional_text("pipeline.openlineage_url") or os.environ.get(URL_VARIABLE)
    return LineageServer(url, os.environ.get(KEY_VARIABLE)) if url else None


def _post(server: LineageServer | None, event: dict[str, object], output: Output) -> None:
    if server is not None and (reason := server.post(event)):
        output.note(f"the lineage server {server.url} did not accept the event {event['eventType']}: {reason}")


def _write_metrics(settings: Settings, lake: Lake, figures: RunFigures, output: Output) -> None:
    from posthouse.pipeline.run.run_metrics import write_run_metrics

    path = settings.optional_path("pipeline.metrics_file")
    if path is None:
        return
    try:
        if figures.is_successful:
            for name in lake.names():
                files = lake.delta(name).files()
                figures.files[name] = (len(files), sum(file.size_bytes for file in files))
        write_run_metrics(path, figures)
    except (PosthouseError, OSError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else failure  # its path is that of a temporary file
        output.note(f"the metrics of the run could not be written to {path}: {reason}")


def compact(
    *,
    upkeep_options: UpkeepOptions = DEFAULT_UPKEEP,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Merge the small files of every table, and delete files that no reader needs. Does not start Spark.

    A run merges files by itself once there are `pipeline.compact_files` small ones; this command merges even two,
    unless --compact-files sets a larger number. No row changes. Replaced files stay for `pipeline.retention_days`
    (bronze) or `pipeline.derived_retention_hours`, for readers of an older version.

    For example:

        posthouse pipeline compact
        posthouse pipeline compact --lake /data/lake
    """
    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.run.lake_run import hold_lake
    from posthouse.pipeline.run.upkeep import migrate_lake, tidy_lake, vacuum_lake

    def on_step(step: RunStep) -> None:
        _show_step(output, step)

    upkeep = upkeep_options.upkeep()
    if upkeep_options.compact_files is None:
        upkeep = upkeep._replace(compact_files=2)
    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    with hold_lake(lake):
        migrate_lake(lake, on_step)
        tidy_lake(lake, system_clock(), upkeep, on_step)
        vacuum_lake(lake, system_clock(), on_step)
    files = {name: len(lake.delta(name).files()) for name in lake.names()}
    output.result({"files": files}, table(("table", "files"), list(files.items())))


def _show_step(output: Output, step: RunStep) -> None:
    if output.json:
        output.result(step.as_value(), "")
    elif step.step != "unchanged":
        output.note(f"{step.step:>9}  {step.table:<24} {step.rows:>12,} rows")


def _show_run(output: Output, report: RunReport, published: int) -> None:
    value = {"rows": report.rows, "versions": report.versions, "published": published}
    output.result(value, table(("table", "version"), list(report.versions.items())))
