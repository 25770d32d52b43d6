"""`posthouse pipeline show` and `export`: read the lake without Spark.

`show` answers fixed questions from the gold tables, in a second; for everything else use SQL: `posthouse pipeline
query`. `export` writes conversations for evaluations and fine-tuning.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.pipeline_options import (
    DEFAULT_PIPELINE,
    WHOLE,
    PeriodOptions,
    PipelineOptions,
    PricesFile,
    read_content_of,
    read_text_of,
)
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.pipeline.gold_reader import GoldReader

Question = Literal["cost", "traffic", "health"]
CostKey = Literal["agent", "model", "day", "task", "conversation"]
_TRAFFIC = ("messages", "deliveries", "delivered", "waiting", "failed", "expired", "rejected")
_HEALTH = (
    *("agent", "sent", "received", "waiting", "failed", "p50_ms", "p90_ms", "max_ms"),
    *("loops_stopped", "refused", "lock_waits", "lock_wait_ms"),
)


def show(
    question: Annotated[Question, Parameter(help="What to show.")],
    /,
    *,
    by: Annotated[
        tuple[CostKey, ...],
        Parameter(negative=(), help="Grouping of cost: one row per agent, model, day, task or conversation."),
    ] = (),
    prices: PricesFile = None,
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
        posthouse pipeline show cost --by conversation
        posthouse pipeline show traffic --mesh main --json
    """
    from posthouse.pipeline.gold_reader import GoldReader
    from posthouse.pipeline.query import refuse_empty

    if question != "cost" and (by or prices is not None):
        raise error("usage", text=f"--{'by' if by else 'prices'} does not apply to {question}")
    lake, selection = pipeline_options.open_lake(), period.selection()
    refuse_empty(lake)
    reader = GoldReader(lake, selection, pipeline_options.prices(prices))
    columns, rows = _answer(reader, question, by)
    if output.json:
        for row in rows:
            output.result({name: row[name] for name in columns}, "")
    elif rows:
        is_csv = output.form == "csv"
        cells = [[_cell(name, row[name], is_csv=is_csv) for name in columns] for row in rows]
        output.result(None, table(columns, cells))
    else:
        output.note("nothing to show: no messages in this period, or none that report these figures")


def _answer(reader: GoldReader, question: Question, by: tuple[CostKey, ...]) -> tuple[tuple[str, ...], list[Any]]:
    if question == "cost":
        keys = by or ("agent", "model")
        return (*keys, "messages", "input_tokens", "output_tokens", "cached_tokens", "cost_usd"), reader.costs(*keys)
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


def _cell(column: str, value: Any, *, is_csv: bool) -> str:
    """Return a value formatted for people, or unformatted for a program that reads CSV."""
    from posthouse.pipeline.report.markup import duration

    if value is None:
        return ""
    if is_csv:
        return str(value)
    if column.endswith("_ms"):
        return duration(value)
    return f"${value:,.4f}" if column == "cost_usd" else str(value)


def export(
    to: Annotated[Path, Parameter(help="File to write: NAME.jsonl or NAME.parquet.")],
    /,
    *,
    rules: Annotated[Path | None, Parameter(help="TOML file of redaction rules: drop, and [[replace]].")] = None,
    again: Annotated[
        Path | None, Parameter(help="Manifest of an earlier export: export the same history with the same rules.")
    ] = None,
    pipeline_options: PipelineOptions = DEFAULT_PIPELINE,
    output: Output = PLAIN,
) -> None:
    """Export conversations for evaluations and fine-tuning, as JSON lines or Parquet, redacted by rules.

    Sealed text is left out. A manifest next to the file records the history and the rules that were used; `--again`
    reads it to write the same bytes later, even if the lake has grown.

    For example:

        posthouse pipeline export chats.jsonl --rules redact.toml
        posthouse pipeline export chats.parquet
        posthouse pipeline export again.jsonl --again chats.jsonl.manifest.json
    """
    from posthouse.pipeline.export_conversations import (
        FORMATS,
        RedactionRules,
        export_conversations,
        manifest_path,
        parse_manifest,
        parse_rules,
    )
    from posthouse.pipeline.query import refuse_empty

    kind = to.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise error("usage", text=f"the format of {to.name} is unknown", hint="Give NAME.jsonl or NAME.parquet.")
    if not to.absolute().parent.is_dir():
        raise error("usage", text=f"there is no directory {to.parent}", hint="Create it first.")
    if rules is not None and again is not None:
        raise error("usage", text="--rules and --again cannot be combined", hint="A manifest holds its rules.")
    chosen = RedactionRules() if rules is None else parse_rules(read_text_of(rules), str(rules))
    earlier = None if again is None else parse_manifest(read_content_of(again), str(again))
    lake = pipeline_options.open_lake()
    refuse_empty(lake)
    target = to.absolute()
    made = (
        export_conversations(lake, target, kind, chosen)
        if earlier is None
        else export_conversations(lake, target, kind, earlier.rules, earlier.positions)
    )
    value = {"path": target, "manifest": manifest_path(target)} | {
        name: getattr(made, name) for name in ("conversations", "messages", "sealed", "sha256")
    }
    shown = f"{made.messages:,} messages of {made.conversations:,} conversations in {target}"
    output.result(value, f"{shown}; the text of {made.sealed:,} is sealed and left out" if made.sealed else shown)
