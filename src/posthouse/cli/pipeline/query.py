"""`posthouse pipeline query`: a question in SQL to the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.pipeline.place import HERE, Place

if TYPE_CHECKING:
    from posthouse.pipeline.query import Answer


def query(
    sql: Annotated[str, Parameter(help="The question. Tables are named <layer>_<name>: SHOW TABLES lists them.")],
    *,
    limit: Annotated[int, Parameter(help="How many rows at most.")] = 1000,
    place: Place = HERE,
    output: Output = PLAIN,
) -> None:
    """Ask the lake; a warm session (`posthouse pipeline serve`) answers at once, else Spark is started.

    For example:

        posthouse pipeline query 'SHOW TABLES'
        posthouse pipeline query 'SELECT day, sum(messages) FROM gold_traffic_hourly GROUP BY day ORDER BY day'
    """
    from posthouse.pipeline.serve import ask_server

    lake = place.open_lake()
    found = ask_server(lake.path, sql, limit)
    _show(output, found or _ask_here(place, sql, limit))


def _ask_here(place: Place, sql: str, limit: int) -> Answer:
    from posthouse.pipeline.query import ask, refuse_empty

    lake = place.open_lake()
    refuse_empty(lake)  # before Spark is started for nothing
    spark = place.session()
    try:
        return ask(spark, lake, sql, limit)
    finally:
        spark.stop()


def _show(output: Output, answer: Answer) -> None:
    if output.json:
        for row in answer.rows:
            output.answer(dict(zip(answer.columns, row, strict=True)), "")
    else:
        output.answer(None, table(answer.columns, answer.rows))
    if answer.is_cut:
        output.note(f"only the first {len(answer.rows)} rows are shown; --limit shows more")
