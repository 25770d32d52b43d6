"""`posthouse pipeline demo`: a made-up history, and everything the pipeline makes of it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.log import configure_log
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.cli.pipeline.report import show_page, write_report
from posthouse.cli.pipeline.whatif import show_judgement
from posthouse.cli.settings import load

if TYPE_CHECKING:
    from posthouse.pipeline.whatif import Proposal


def demo(
    *,
    agents: Annotated[int, Parameter(help="How many agents there are.")] = 12,
    messages: Annotated[int, Parameter(help="About how many messages they send.")] = 3_000,
    seed: Annotated[int, Parameter(help="The same number tells the same story.")] = 1,
    to: Annotated[Path | None, Parameter(help="Where to put stores and lake [default: a new directory].")] = None,
    open: Annotated[bool, Parameter(help="Show the report in the browser.")] = True,  # noqa: A002 - the flag's word
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Make a week of a company of agents with the real relay, locks and bus, then run everything on it.

    Threads, offline spells, failures, fights for locks and costs; then the lake, the audit, a what-if with half the
    mailboxes, and the report. Nothing of yours is read or changed.

    For example:

        posthouse pipeline demo
        posthouse pipeline demo --agents 20 --messages 20000 --no-open
    """
    from posthouse.pipeline.demo import make_history
    from posthouse.pipeline.run import bring_up_to_date
    from posthouse.pipeline.source.store import Access
    from posthouse.pipeline.whatif import judge_history
    from posthouse.pipeline.whatif.history import bus_journal

    configure_log(load({"log.level": "warning"}))  # the relay of the story tells of each hour
    directory = Path(tempfile.mkdtemp(prefix="posthouse-demo-")) if to is None else to.absolute()
    output.note(f"making a history of {messages:,} messages in {directory}")
    history = make_history(directory, seed, agents, messages)
    place = replace(place, lake=place.lake or directory / "lake")
    lake, spark = place.open_lake(), place.session()
    try:
        done = bring_up_to_date(spark, lake, [Access(source) for source in history.sources])
        output.note(f"{done.rows:,} rows are in the lake; what if mailboxes held half as much?")
        show_judgement(judge_history(bus_journal(spark, lake), _halved()), output, limit=5)
        path = write_report(spark, lake, None, is_audited=True)
    finally:
        spark.stop()
    output.answer({"path": path, "lake": lake.path, "sources": history.sources}, f"the report is {path}")
    if open:
        show_page(path)


def _halved() -> Proposal:
    """Return the rules of the demo with half the room in each mailbox."""
    from msgspec.structs import replace as changed

    from posthouse.model.access import AccessRules
    from posthouse.pipeline.demo.bus_scene import CYCLE_RULE, RELIABILITY, RULES
    from posthouse.pipeline.whatif import Proposal
    from posthouse.pipeline.whatif.proposal import BudgetProposal

    pressure = RELIABILITY.backpressure
    halved = changed(pressure, max_mailbox_size=pressure.max_mailbox_size // 2)
    return Proposal(
        changed(RELIABILITY, backpressure=halved), AccessRules(RULES), BudgetProposal(cycle_rule=CYCLE_RULE)
    )
