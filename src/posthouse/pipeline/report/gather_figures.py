"""Gather the figures of the page: from the gold tables, from silver for slow answers, from bronze for traces.

No Spark is needed. Only aggregates and the largest entries are kept, so the page stays small. A trace consists of the
records of one message: the page has the traces of the messages that its findings and its slowest answers name. The time
to answer is that from a message to the first reply of another sender, and counts for the day of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from posthouse.model.clock import Clock
from posthouse.model.limits import DAY_S, MILLISECOND_NS, SECOND_NS
from posthouse.model.usage import Prices
from posthouse.pipeline.epochs import ALL_LOST, live_through
from posthouse.pipeline.gold_reader import CONVERSATION, FAILURES, OUTCOMES, GoldReader, Row, Selection, middle
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter
from posthouse.pipeline.report import figures

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from posthouse.pipeline.audit.audit import Report
    from posthouse.pipeline.party_names import PartyNames

_MAX_EDGES = 400  # per source: enough for all cells of the largest matrix
_MODELS = 5  # models with their own color
_RANKED = 8  # entries of a ranking
_AGENTS = 25
_DETAILS = 20  # findings that the page lists one by one
_TRACES = 20
_SLOWEST = 8
_TRACE_STEPS = 40
_ANSWER_COLUMNS = ("epoch", "seq", "source", "message_id", "sender", "reply_to", "at_ns")
_EVENT_ID = re.compile(r"[0-9a-f]{64}|[0-9A-HJKMNP-TV-Z]{26}")  # of a relay, of a bus


def gather_figures(
    lake: Lake,
    clock: Clock,
    audited: Report | None = None,
    selection: Selection | None = None,
    prices: Prices | None = None,
) -> figures.Figures:
    """Read all figures of the page."""
    reader = GoldReader(lake, selection or Selection(), prices)
    traffic, costs, refusals = reader.traffic(), reader.costs("day", "model"), reader.refusals()
    agents, answers = reader.agents(), find_answers(reader)
    audit = None if audited is None else summarise_audit(audited)
    details = audit.details if audit is not None else ()
    linked = [each.message_id for each in details] + [each.message_id for each in answers.slowest]
    newest = max((row["day"] for row in traffic), default="")
    before = reader.selection.before(newest) if newest else None
    return figures.Figures(
        made_at_s=clock.wall_ns() / SECOND_NS,
        limits=_limits(reader.selection),
        hours=_hours(traffic),
        outcomes=tuple(
            figures.Ranked(name, total) for name in OUTCOMES if (total := sum(row[name] for row in traffic))
        ),
        latency=_latency(reader),
        agents=_agents(reader, agents, answers),
        slow_answers=answers.slowest,
        costs=_costs(costs),
        spenders=_ranked(reader.costs("agent"), "agent", "cost_usd"),
        conversations=_ranked(reader.costs(CONVERSATION), CONVERSATION, "cost_usd"),
        tasks=tuple(each for each in _ranked(reader.costs("task"), "task", "cost_usd") if each.name),
        tokens=sum(row["input_tokens"] + row["output_tokens"] for row in costs),
        refusals=_refusals_by_code(refusals),
        refused=_refused(refusals, reader.names),
        contention=tuple(_contention(row) for row in reader.contention()[:_RANKED])
        if not reader.selection.agent
        else (),
        edges=_edges(reader),
        audit=audit,
        traces=read_traces(lake, [each for each in linked if each], reader.names),
        now=totals(reader),
        before=None if before is None else totals(reader.of(before)),
    )


def _limits(selection: Selection) -> tuple[str, ...]:
    return tuple(
        f"{word} {value}" for word, value in (("mesh", selection.mesh), ("agent", selection.agent)) if value is not None
    )


def totals(reader: GoldReader) -> figures.Totals:
    """Return the figures by which periods are compared."""
    traffic, agents = reader.traffic(), reader.agents()
    return figures.Totals(
        messages=sum(row["messages"] for row in traffic),
        deliveries=sum(row["deliveries"] for row in traffic),
        delivered=sum(row["delivered"] for row in traffic),
        failed=sum(row[name] for row in traffic for name in FAILURES),
        latency_ms=middle((row["p50_ms"], row["deliveries"]) for row in reader.latency()),
        cost_usd=sum(row["cost_usd"] for row in reader.costs("day")),
        refused=sum(row["count"] for row in reader.refusals()),
        lock_wait_ms=sum(row["lock_wait_ms"] for row in agents),
    )


def _hours(traffic: Sequence[Row]) -> tuple[figures.Hour, ...]:
    found = [
        figures.Hour(
            _hour(row["hour"]),
            row["source"],
            row["messages"],
            row["deliveries"],
            row["delivered"],
            sum(row[name] for name in FAILURES),
        )
        for row in traffic
    ]
    return tuple(sorted(found, key=lambda each: (each.hour, each.source)))


def _latency(reader: GoldReader) -> tuple[figures.Latency, ...]:
    """Return a row per hour and source; meshes are weighted by their deliveries."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in reader.latency():
        parts.setdefault((row["hour"], row["source"]), []).append(row)
    found = []
    for (hour, source), rows in parts.items():
        weight = sum(row["deliveries"] for row in rows) or 1
        means = [sum(row[name] * row["deliveries"] for row in rows) / weight for name in ("p50_ms", "p90_ms", "p99_ms")]
        found.append(figures.Latency(_hour(hour), source, weight, *means))
    return tuple(sorted(found, key=lambda each: (each.hour, each.source)))


def _agents(reader: GoldReader, rows: Sequence[Row], answers: Answers) -> tuple[figures.AgentHealth, ...]:
    costs = {row["agent"]: row["cost_usd"] for row in reader.costs("agent")}
    found = []
    for row in rows[:_AGENTS]:
        times = answers.times_ms.get(row["agent"], ())
        shared = ("agent", "sent", "received", "waiting", "p50_ms", "p90_ms", "refused", "loops_stopped", "lock_waits")
        found.append(
            figures.AgentHealth(
                **{name: row[name] for name in shared},
                failed=sum(row[name] for name in FAILURES),
                max_ms=row["max_ms"] or None,
                lock_wait_ms=row["lock_wait_ms"],
                answer_ms=middle((each, 1) for each in times),
                answers=len(times),
                cost_usd=costs.get(row["agent"], 0.0),
            )
        )
    return tuple(found)


def _costs(rows: Sequence[Row]) -> tuple[figures.Cost, ...]:
    """Return cost per day and model; all but the most expensive models are combined as `others`."""
    by_model: dict[str, float] = {}
    for row in rows:
        by_model[row["model"]] = by_model.get(row["model"], 0.0) + row["cost_usd"]
    largest = sorted(by_model, key=lambda model: (-by_model[model], model))[:_MODELS]
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["day"], row["model"] if row["model"] in largest else "others"
        found[key] = found.get(key, 0.0) + row["cost_usd"]
    return tuple(figures.Cost(*key, cost) for key, cost in sorted(found.items()))


def _ranked(rows: Sequence[Row], name: str, figure: str) -> tuple[figures.Ranked, ...]:
    return tuple(figures.Ranked(str(row[name]), row[figure]) for row in rows[:_RANKED] if row[figure])


def _refusals_by_code(rows: Sequence[Row]) -> tuple[figures.Ranked, ...]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["code"]] = found.get(row["code"], 0) + row["count"]
    return tuple(
        figures.Ranked(*pair) for pair in sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:_RANKED]
    )


def _refused(rows: Sequence[Row], names: PartyNames) -> tuple[figures.Ranked, ...]:
    return tuple(
        figures.Ranked(" → ".join(names(part) for part in row["key"].split(" ")), row["count"], row["code"])
        for row in rows[:_RANKED]
    )


def _contention(row: Row) -> figures.Contention:
    return figures.Contention(**{name: row[name] for name in figures.Contention.__dataclass_fields__})


def _edges(reader: GoldReader) -> dict[str, tuple[figures.Edge, ...]]:
    found: dict[str, list[figures.Edge]] = {}
    for row in reader.pairs():
        found.setdefault(row["source"], []).append(figures.Edge(row["sender"], row["recipient"], row["deliveries"]))
    return {source: tuple(found[source][:_MAX_EDGES]) for source in sorted(found)}


def summarise_audit(audited: Report) -> figures.AuditSummary:
    """Return the summary of an audit for the page."""
    from posthouse.pipeline.audit.finding import CODES

    counts = sorted(audited.counts.items(), key=lambda item: (-item[1], item[0]))
    details = [
        figures.FoundDetail(each.code, each.detail, each.ref if _EVENT_ID.fullmatch(each.ref or "") else "")
        for each in audited.findings[:_DETAILS]
    ]
    codes = tuple(figures.Ranked(code, count, CODES.get(code, "")) for code, count in counts)
    return figures.AuditSummary(audited.records, codes, tuple(details), audited.events, audited.seals)


def read_traces(lake: Lake, ids: Collection[str], names: PartyNames) -> tuple[figures.Trace, ...]:
    """Return the records of messages, in one scan of bronze."""
    import pyarrow.compute as pc

    wanted = list(dict.fromkeys(ids))[:_TRACES]
    if not wanted:
        return ()
    mentions = pc.match_substring_regex(pc.field("body"), "|".join(map(re.escape, wanted)))
    where = pc.field("ref").isin(wanted) | mentions
    columns = ("seq", "at_ns", "type", "actor", "ref", "body")
    rows = BronzeScan(lake, "bronze_journal").rows(RowFilter(where=where), columns)
    rows.sort(key=lambda row: (row["at_ns"], row["seq"]))
    found = []
    for message_id in wanted:
        own = [row for row in rows if row["ref"] == message_id or message_id in (row["body"] or "")]
        steps = [
            figures.TraceStep(row["at_ns"], row["type"], _who(row, message_id, names)) for row in own[:_TRACE_STEPS]
        ]
        found.append(figures.Trace(message_id, tuple(steps)))
    return tuple(each for each in found if each.steps)


def _who(row: dict[str, Any], message_id: str, names: PartyNames) -> str:
    """Return the node that a record is about: its reader if it closes a delivery, else its actor."""
    party = row["ref"] if row["ref"] and row["ref"] != message_id else row["actor"]
    return names(party) if party else ""


def _hour(hour: str) -> int:
    """Return the hours since 1970 of a text like 2026-01-31T09."""
    return int(datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) // 3600


class Answers(NamedTuple):
    """The times to answer of every agent, in milliseconds, and the slowest answers."""

    times_ms: dict[str, list[float]]
    slowest: tuple[figures.SlowAnswer, ...]


def find_answers(reader: GoldReader) -> Answers:
    """Return the answers of the selected period."""
    import pyarrow.compute as pc

    delta, live = reader.lake.delta("silver_messages"), live_through(reader.lake.epochs())
    replies = delta.to_arrow(_ANSWER_COLUMNS, pc.field("reply_to").is_valid() & _in_period(reader.selection))
    asked_ids = replies.column("reply_to").unique()
    asked = {
        (row["source"], row["message_id"]): row
        for row in delta.to_arrow(_ANSWER_COLUMNS, pc.field("message_id").isin(asked_ids)).to_pylist()
        if row["sender"] is not None and row["seq"] <= live.get(row["epoch"], ALL_LOST)
    }
    times: dict[str, list[float]] = {}
    found: list[figures.SlowAnswer] = []
    first: dict[tuple[str, str, str], int] = {}
    for row in sorted(replies.to_pylist(), key=lambda row: row["at_ns"]):
        question = asked.get((row["source"], row["reply_to"]))
        if question is None or row["sender"] in (None, question["sender"]):
            continue
        key = (row["source"], row["reply_to"], row["sender"])
        if key in first or not reader.is_chosen(row["sender"]):
            continue
        first[key] = row["at_ns"]
        took_ms = (row["at_ns"] - question["at_ns"]) / MILLISECOND_NS
        agent = reader.names(row["sender"])
        times.setdefault(agent, []).append(took_ms)
        found.append(figures.SlowAnswer(agent, reader.names(question["sender"]), took_ms, row["reply_to"]))
    found.sort(key=lambda each: -each.answer_ms)
    return Answers(times, tuple(found[:_SLOWEST]))


def _in_period(selection: Selection) -> pc.Expression:
    """Return the condition for replies of the selected days and mesh."""
    import pyarrow.compute as pc

    found = pc.field("at_ns") >= (0 if selection.first_day is None else _start_ns(selection.first_day))
    if selection.last_day is not None:
        found &= pc.field("at_ns") < _start_ns(selection.last_day) + DAY_S * SECOND_NS
    return found if selection.mesh is None else found & (pc.field("mesh") == selection.mesh)


def _start_ns(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * SECOND_NS
