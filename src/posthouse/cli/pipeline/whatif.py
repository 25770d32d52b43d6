"""`posthouse pipeline whatif`: what other rules would have done with the traffic there was."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.pipeline.place import HERE, Place
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.pipeline.whatif import Judgement


def whatif(
    *,
    config: Annotated[Path | None, Parameter(help="A config.json of a bus, with the limits to try.")] = None,
    rules: Annotated[Path | None, Parameter(help="An access-rules.json to try.")] = None,
    limit: Annotated[int, Parameter(help="How many rows of each table to show at most.")] = 50,
    place: Place = HERE,
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
    from posthouse.pipeline.whatif import judge_history, read_proposal
    from posthouse.pipeline.whatif.history import bus_journal

    if config is None and rules is None:
        raise error("usage", text="name what to try", hint="Give --config FILE, --rules FILE, or both.")
    proposal = read_proposal(config, rules)
    lake = place.open_lake()
    refuse_empty(lake)
    spark = place.session()
    try:
        show_judgement(judge_history(bus_journal(spark, lake), proposal), output, limit)
    finally:
        spark.stop()


def show_judgement(judgement: Judgement, output: Output, limit: int) -> None:
    """Write what would have been different."""
    from pyspark.sql import functions as f

    judgement.attempts.cache()
    totals = judgement.refusals.groupBy("code").agg(f.sum("was").alias("was"), f.sum("would").alias("would"))
    refused = judgement.accepted.where("would IS NOT NULL")
    changed = judgement.refusals.where("was <> would")
    _show(output, "totals", ("code", "was", "would"), totals.orderBy("code").collect())
    columns = ("created_ms", "sender", "subject", "id", "would", "text")
    rows = refused.orderBy("created_ms", "id", "subject").select(*columns).limit(limit).collect()
    _show(output, "accepted", columns, rows)
    keys = ("code", "key", "minute", "was", "would")
    _show(output, "refusals", keys, changed.orderBy("minute", "code", "key").select(*keys).limit(limit).collect())
    count = judgement.accepted.agg(f.count("*"), f.count("would")).first()
    assert count is not None
    output.note(f"{count[1]:,} of {count[0]:,} accepted messages would have been refused")


def _show(output: Output, kind: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if output.json:
        for row in rows:
            output.answer({"table": kind} | dict(zip(columns, row, strict=True)), "")
    elif rows:
        output.note(_TITLES[kind])
        output.answer(
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
