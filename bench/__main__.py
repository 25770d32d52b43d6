"""`python -m bench PART`: measure posthouse, compared with the bare libraries doing the same work in the same run.

PART is store, bus, relay, cluster, drain, locks, send, start, memory, mirror, pipeline or peers (other systems, no
libraries). Each part works in a temporary directory below --dir, whose disk determines the results, and removes it.
--quick does far less; --json prints the whole report.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from bench.peers.works import Work
from posthouse.cli.commands import noun
from posthouse.cli.exit_codes import run_to_exit_code
from posthouse.cli.output import PLAIN, Output, table

if TYPE_CHECKING:
    from rich.console import RenderableType


BenchDir = Annotated[
    Path | None, Parameter(name="--dir", help="Parent of the temporary directory; its disk determines the results.")
]
Quick = Annotated[bool, Parameter(negative=(), show_default=False, help="Do far less, for a first impression.")]


def show_required(report: dict[str, Any]) -> RenderableType:
    """Return every figure that has a bound, with the bound and whether it is met."""
    rows = [
        (each["name"], f"{each['value']:,}", f"{each['sense']} {each['bound']:,}", "yes" if each["met"] else "NO")
        for each in report["required"]
    ]
    return table(("measured", "value", "required", "met"), rows)


Count = Annotated[int, Parameter(validator=Number(gte=1))]


def store(
    *,
    directory: Annotated[Path | None, Parameter(name="--dir")] = None,
    rounds: Count = 11,
    singles: Count = 300,
    batches: Count = 80,
    output: Output = PLAIN,
) -> None:
    """Compare durable commits through the store with bare apsw writing the same rows.

    For example:

        python -m bench store
        python -m bench store --dir /var/lib/posthouse --json

    Parameters
    ----------
    directory
        Parent of the temporary directory; its disk determines the results.
    rounds
        Number of rounds; both ways alternate in each.
    singles
        Commits per round, one caller at a time.
    batches
        Commits of 64 rows per round.
    """
    from bench.store import measure_store

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_store(Path(scratch), rounds=rounds, singles=singles, batches=batches)
    output.result(report, _show_store(report))


def _show_store(report: dict[str, Any]) -> RenderableType:
    rows = [
        (name, f"{r['ours_per_s']:,}/s", f"{r['bare_per_s']:,}/s", f"{r['ratio']:.2f}", r["required"], r["aim"])
        for name, r in report["results"].items()
    ]
    return table(("commits", "posthouse", "bare apsw", "ratio", "at least", "aim"), rows)


def bus(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure the bus, compared with bare file operations on the same disk in the same run.

    The floor is the cost of a message without a bus: create and write a file, rename it twice, unlink it. The safety
    rules stay enabled with raised limits, and the report prints them. The full run publishes a million messages.

    For example:

        python -m bench bus
        python -m bench bus --quick --json
    """
    from bench.bus import run_bus
    from bench.scales import QUICK_BUS, BusScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = run_bus(Path(scratch), QUICK_BUS if quick else BusScale(), output.note)
    output.result(report, show_required(report))


def relay(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure accepting, fan-out and queries of a relay; client and relay are separate processes.

    Every answer comes after the sync of its commit. Rates and caps stay enabled with raised limits. The store of a
    million events is created once and kept in the system's temporary directory.

    For example:

        python -m bench relay
        python -m bench relay --quick --json
    """
    from bench.relay import measure_relay
    from bench.scales import QUICK_RELAY, RelayScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_relay(Path(scratch), QUICK_RELAY if quick else RelayScale(), output.note)
    output.result(report, show_required(report))


def cluster(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure relays on PostgreSQL: against bare psycopg, against a relay on SQLite, and three against one.

    It starts a PostgreSQL of its own. On both databases, every answer comes after the sync of its commit.

    For example:

        python -m bench cluster
        python -m bench cluster --quick --json
    """
    from bench.cluster import measure_cluster
    from bench.scales import QUICK_CLUSTER, ClusterScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_cluster(Path(scratch), QUICK_CLUSTER if quick else ClusterScale(), output.note)
    output.result(report, show_required(report))


def drain(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure how fast readers receive and confirm a backlog; relay and readers are separate processes.

    Every confirmation is answered after the sync of its commit, with up to 50 ids under one signature. The window is
    500, frames are lists. Rates and caps stay enabled with raised limits. The readers do not verify signatures.

    For example:

        python -m bench drain
        python -m bench drain --quick --json
    """
    from bench.drain import measure_drain
    from bench.scales import QUICK_DRAIN, DrainScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_drain(Path(scratch), QUICK_DRAIN if quick else DrainScale(), output.note)
    output.result(report, show_required(report))


def locks(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure pairs of acquire and release: one client, 16 clients on 16 resources, 16 clients on one.

    Client and relay are separate processes; every answer comes after the sync of its commit.

    For example:

        python -m bench locks
        python -m bench locks --quick --json
    """
    from bench.locks import measure_locks
    from bench.scales import QUICK_LOCKS, LocksScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_locks(Path(scratch), QUICK_LOCKS if quick else LocksScale(), output.note)
    output.result(report, show_required(report))


def send(
    *,
    directory: BenchDir = None,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Measure sending through daemons: accepting, one at a time, from host to host, and draining a backlog.

    Relay, daemons and client are separate processes. Every answer comes after the sync of its commit. Rates and caps
    of the relay stay enabled with raised limits; the report prints them.

    For example:

        python -m bench send
        python -m bench send --quick --json
    """
    from bench.scales import QUICK_SEND, SendScale
    from bench.send import measure_send

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_send(Path(scratch), QUICK_SEND if quick else SendScale(), output.note)
    output.result(report, show_required(report))


def start(*, directory: BenchDir = None, quick: Quick = False, output: Output = PLAIN) -> None:
    """Measure how long commands take from start to end, relative to an interpreter that does nothing.

    For example:

        python -m bench start
        python -m bench start --quick --json
    """
    from bench.start import QUICK_ROUNDS, ROUNDS, measure_start

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_start(Path(scratch), QUICK_ROUNDS if quick else ROUNDS, output.note)
    output.result(report, show_required(report))


def memory(*, directory: BenchDir = None, quick: Quick = False, output: Output = PLAIN) -> None:
    """Measure what an idle relay, an idle daemon and an idle connection hold in memory.

    For example:

        python -m bench memory
        python -m bench memory --quick --json
    """
    from bench.idle_memory import CONNECTIONS, QUICK_CONNECTIONS, measure_memory

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        report = measure_memory(Path(scratch), QUICK_CONNECTIONS if quick else CONNECTIONS, output.note)
    output.result(report, show_required(report))


def mirror(*, quick: Quick = False, output: Output = PLAIN) -> None:
    """Measure what two relays exchange to find ten different events among a million.

    For example:

        python -m bench mirror
        python -m bench mirror --quick --json
    """
    from bench.mirror import EVENTS, QUICK_EVENTS, measure_mirror

    report = measure_mirror(QUICK_EVENTS if quick else EVENTS, output.note)
    output.result(report, show_required(report))


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
            help="Only measure whole runs over histories of these sizes, with their memory.",
        ),
    ] = (),
    output: Output = PLAIN,
) -> None:
    """Measure the pipeline on two cores of this machine, in one warm session of Spark.

    Records are read from a relay's file. Bronze ingest includes everything up to the commit: files, statistics and
    Merkle roots. Signatures are compared with bare libsodium in the same run.

    For example:

        python -m bench pipeline
        python -m bench pipeline --quick --json
        python -m bench pipeline --growth 300000 1000000 3000000 --json
    """
    from bench.pipeline import measure_pipeline, measure_sizes
    from bench.scales import QUICK_PIPELINE, PipelineScale

    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch:
        if growth:
            report = measure_sizes(Path(scratch), growth, output.note)
        else:
            report = measure_pipeline(Path(scratch), QUICK_PIPELINE if quick else PipelineScale(), output.note)
    output.result(report, show_required(report))


def peers(
    *,
    directory: BenchDir = None,
    works: Annotated[
        tuple[Work, ...], Parameter(negative=(), consume_multiple=True, show_default=False, help="Only these works.")
    ] = (),
    repetitions: Annotated[Count, Parameter(help="Repetitions; the result is their median.")] = 5,
    quick: Quick = False,
    output: Output = PLAIN,
) -> None:
    """Compare posthouse with Redis, PostgreSQL, NATS JetStream, RabbitMQ and etcd, at equal durability.

    Every server is a private process on the loopback interface and answers after the data is on disk. One operation of
    each of them runs at a time, in random order. Systems that are not installed are left out, and the report names
    them.

    For example:

        python -m bench peers
        python -m bench peers --works publish lock --repetitions 3 --json
    """
    from bench.peers.comparison_run import compare_peers
    from bench.peers.works import PLANS, QUICK_PLANS

    chosen = {work: plan for work, plan in (QUICK_PLANS if quick else PLANS).items() if work in (works or Work)}
    iterations = repetitions * sum(plan.operations for plan in chosen.values())
    with (
        tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=directory or Path.cwd()) as scratch,
        progress_bar(iterations) as on_progress,
    ):
        report = compare_peers(Path(scratch), chosen, repetitions, on_progress)
    output.result(report, _show_peers(report))


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal's stderr; the callback names the current work and counts one iteration."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting the servers", total=total)
        yield lambda title: bar.update(task, advance=1, description=title)


def _show_peers(report: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    from bench.peers.peers_report import configurations_of, names_of, rows_of

    rates = table(("per second", *names_of(report)), rows_of(report))
    configurations = table(("contestant", "version", "durable before the answer", "client"), configurations_of(report))
    settings = [
        (name, ", ".join(f"{setting} {value}" for setting, value in each["settings"].items()))
        for name, each in report["contestants"].items()
    ]
    skipped = [f"{name} was left out: {reason}" for name, reason in report["skipped"].items()]
    return Group(
        rates, "", show_required(report), "", configurations, "", table(("contestant", "settings"), settings), *skipped
    )


app = noun("bench", "Measure posthouse, compared with the bare libraries doing the same work.")
app.command(store, name="store")
app.command(relay, name="relay")
app.command(cluster, name="cluster")
app.command(drain, name="drain")
app.command(locks, name="locks")
app.command(send, name="send")
app.command(start, name="start")
app.command(memory, name="memory")
app.command(mirror, name="mirror")
app.command(bus, name="bus")
app.command(pipeline, name="pipeline")
app.command(peers, name="peers")


def main(tokens: Sequence[str] | None = None) -> None:
    """Run one benchmark; failures and exit codes are those of the `posthouse` command."""
    app.suppress_keyboard_interrupt = False
    command = partial(app, exit_on_error=False, print_error=False, result_action="return_value")
    sys.exit(run_to_exit_code(command, sys.argv[1:] if tokens is None else tokens))


if __name__ == "__main__":
    main()
