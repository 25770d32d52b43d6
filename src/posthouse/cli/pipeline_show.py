"""`posthouse pipeline show`: fixed questions about cost, traffic and health, answered from the gold tables.

No Java starts, so the answer is there in a second. Everything else is a question in SQL: `posthouse pipeline query`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import DEFAULT_PIPELINE, WHOLE, PeriodOptions, PipelineOptions
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.pipeline.gold_reader import GoldReader

Question = Literal["cost", "traffic", "health"]
CostKey = Literal["agent", "model", "day"]
_TRAFFIC = ("messages", "deliveries", "delivered", "waiting", "failed", "expired", "rejected")
_HEALTH = (
    *("agent", "sent", "received", "waiting", "failed", "p50_ms", "p90_ms", "max_ms"),
    *("loops_stopped", "refused", "lock_waits", "lock_wait_ms"),
)


def show(
    question: Annotated[Question, Parameter(help="What to show.")],
    /,
    *,
    by: Annotated[tuple[CostKey, ...], Parameter(negative=(), help="Of cost: one row per agent, model or day.")] = (),
    period: PeriodOptions = WHOLE,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Show cost, traffic or the health of every agent from the lake, without Spark.

    Health: p50 and p90 are the delivery latency of the median hour; waiting is the backlog; loops stopped are messages
    refused because their budget was spent.

    For example:

        posthouse pipeline show health --since 7d
        posthouse pipeline show cost --by agent --by day --since 2026-11-01
        posthouse pipeline show traffic --mesh main --json
    """
    from posthouse.pipeline.gold_reader import GoldReader
    from posthouse.pipeline.query import refuse_empty

    if by and question != "cost":
        raise error("usage", text=f"--by does not apply to {question}")
    lake, selection = pipeline_options.open_lake(), period.selection()
    refuse_empty(lake)
    reader = GoldReader(lake, selection)
    columns, rows = _answer(reader, question, by)
    if output.json:
        for row in rows:
            output.result({name: row[name] for name in columns}, "")
    elif rows:
        output.result(None, table(columns, [[_shown(name, row[name]) for name in columns] for row in rows]))
    else:
        output.note("nothing to show: no message of this period, or none that reports it")


def _answer(reader: GoldReader, question: Question, by: tuple[CostKey, ...]) -> tuple[tuple[str, ...], list[Any]]:
    if question == "cost":
        keys = by or ("agent", "model")
        return (*keys, "messages", "input_tokens", "output_tokens", "cost_usd"), reader.costs(*keys)
    if question == "health":
        return _HEALTH, reader.agents()
    days: dict[tuple[str, str], dict[str, Any]] = {}
    for row in reader.traffic():
        mine = days.setdefault(
            (row["day"], row["source"]), {"day": row["day"], "source": row["source"], **dict.fromkeys(_TRAFFIC, 0)}
        )
        for name in _TRAFFIC:
            mine[name] += row[name]
    return ("day", "source", *_TRAFFIC), [days[key] for key in sorted(days)]


def _shown(column: str, value: Any) -> str:
    from posthouse.pipeline.report.markup import duration

    if value is None:
        return ""
    if column.endswith("_ms"):
        return duration(value)
    return f"${value:,.4f}" if column == "cost_usd" else str(value)
