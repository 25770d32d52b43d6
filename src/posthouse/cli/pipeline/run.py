"""`posthouse pipeline run`: bring the lake up to date, once or again and again."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.daemon.duration import parse_duration
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.cli.pipeline.sources import open_sources, relays_of
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.pipeline.run import RunReport
    from posthouse.pipeline.run.progress import Step


def run(
    *,
    once: Annotated[bool, Parameter(negative=(), help="One run; this is what happens without --every too.")] = False,
    every: Annotated[str | None, Parameter(help="Run again and again, this long apart: 60s, 15m.")] = None,
    rebuild: Annotated[bool, Parameter(negative=(), help="Make every table above bronze anew.")] = False,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Copy what is new in the journals into the lake, then bring every table up to date.

    A run that fails or is killed is simply run again: nothing is there twice, nothing is missing. With a relay among
    the sources the Merkle root of every new batch is published there as a signed event. With --every it goes on until
    Ctrl-C or SIGTERM; SIGTERM lets a run that works come to its end.

    For example:

        posthouse pipeline run
        posthouse pipeline run --source ~/.posthouse/relay --lake /data/lake
        posthouse pipeline run --source https://relay.example.org --every 60s
    """
    if once and every is not None:
        raise error("usage", text="--once and --every exclude each other")
    wait_s = None if every is None else parse_duration(every)
    open_sources(place)  # before Spark is started for nothing
    spark = place.session()
    try:
        ended = _ended_by_signal() if wait_s is not None else None
        _run_once(place, output, is_rebuild=rebuild)
        while ended is not None and not ended.wait(wait_s):
            _run_once(place, output, is_rebuild=False)
    finally:
        spark.stop()


def _ended_by_signal() -> threading.Event:
    """Return what SIGTERM sets: the run that works just then is finished first; a second SIGTERM ends at once."""
    ended = threading.Event()

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # Not from here: the main thread may hold the event's lock just now.
        threading.Thread(target=ended.set).start()

    signal.signal(signal.SIGTERM, end)
    return ended


def _run_once(place: Place, output: Output, *, is_rebuild: bool) -> None:
    from posthouse.pipeline.run import bring_up_to_date
    from posthouse.pipeline.run.locked import with_relay_lock
    from posthouse.pipeline.run.roots import publish_roots

    lake = place.open_lake()
    relays = relays_of(place)
    with with_relay_lock(lake.path, place.reach(relays[0]).client() if relays else None):
        report = bring_up_to_date(
            place.session(),
            lake,
            open_sources(place),
            batch_rows=int(str(place.settings()["pipeline.batch_rows"])),
            is_rebuild=is_rebuild,
            tell=lambda step: _tell(output, step),
        )
    published = sum(publish_roots(lake, place.reach(relay).client()) for relay in relays)
    _answer(output, report, published)


def _tell(output: Output, step: Step) -> None:
    if output.json:
        output.answer(step.as_value(), "")
    elif step.step != "unchanged":
        output.note(f"{step.step:>9}  {step.table:<24} {step.rows:>12,} rows")


def _answer(output: Output, report: RunReport, published: int) -> None:
    value = {"rows": report.rows, "versions": report.versions, "published": published}
    output.answer(value, table(("table", "version"), list(report.versions.items())))
