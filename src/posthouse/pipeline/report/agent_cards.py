"""The cards of agents: the health of each, the slowest answers, cost, refusals and lock contention."""

from __future__ import annotations

from posthouse.pipeline.report.audit_cards import trace_link
from posthouse.pipeline.report.figures import AgentHealth, Contention, Figures, Ranked
from posthouse.pipeline.report.markup import (
    HALF_PX,
    Markup,
    card,
    count,
    dollars,
    duration,
    element,
    fitted,
    fitting,
    nothing,
    ranked_bars,
    short_day,
    table,
    text,
)
from posthouse.pipeline.report.svg_charts import Plane, legend, stacked_columns

_AGENT_LEAD = (
    "Backlog: deliveries that wait. Latency: until the agent confirmed or handled a message, in its median hour. "
    "Answer: median time to a reply. Loops: messages refused because their budget was spent."
)
_AGENT_HEADS = (
    *("Agent", "Sent", "Received", "Backlog", "Failed", "Latency p50", "p90", "Answer"),
    *("Loops stopped", "Lock waits", "Refused", "Cost"),
)
_AGENT_MINOR = frozenset({1, 2, 6, 7, 8, 9, 10})
_AGENT_WIDE = frozenset({6, 9, 10})
_AGENT_CHARS = 28


def agent_cards(figures: Figures) -> list[Markup]:
    """Return the card of the health of every agent."""
    if not figures.agents:
        return [card("Agents", _AGENT_LEAD, nothing("No agent has sent or received a message."), is_whole=True)]
    rows = [_agent_row(each) for each in figures.agents]
    health = element("div", table(_AGENT_HEADS, rows, _AGENT_MINOR, wide=_AGENT_WIDE), class_="scroll")
    return [card("Agents", _AGENT_LEAD, health, is_whole=True)]


def _agent_row(each: AgentHealth) -> list[str]:
    waits = f"{count(each.lock_waits)} · {duration(each.lock_wait_ms)}" if each.lock_waits else "–"
    return [
        fitted(each.agent, _AGENT_CHARS),
        count(each.sent),
        count(each.received),
        _alarm(each.waiting, "warn"),
        _alarm(each.failed, "fail"),
        duration(each.p50_ms),
        duration(each.p90_ms),
        duration(each.answer_ms),
        _alarm(each.loops_stopped, "warn"),
        waits,
        _alarm(each.refused, "warn"),
        dollars(each.cost_usd) if each.cost_usd else "–",
    ]


def _alarm(value: int, class_: str) -> str:
    """Return a number that stands out unless it is 0."""
    return element("b", text(count(value)), class_=class_) if value else "–"


_ANSWER_LEAD = "The replies that took longest, from the message to its first answer by that agent."


def answer_cards(figures: Figures) -> list[Markup]:
    """Return the card of the slowest answers."""
    if not figures.slow_answers:
        return [card("Slowest answers", _ANSWER_LEAD, nothing("No message was answered."))]
    rows: list[list[str]] = [
        [
            f"{fitted(each.agent, _AGENT_CHARS)} to {fitted(each.asker, _AGENT_CHARS)}",
            duration(each.answer_ms),
            trace_link(figures, each.message_id),
        ]
        for each in figures.slow_answers
    ]
    return [card("Slowest answers", _ANSWER_LEAD, table(("Answer", "Took", ""), rows))]


_COST_LEAD = "Usage that messages report, by day and model."
_SPENDER_LEAD = "The agents with the highest cost."
_MAX_DAYS = 60
_NAME_CHARS = 40
_CLASSES = ("c1", "c2", "c3", "c4", "c5", "c6")


def cost_cards(figures: Figures) -> list[Markup]:
    """Return the cards of costs."""
    if not figures.costs:
        return [card("Cost", _COST_LEAD, nothing("No message reported its usage."))]
    totals: dict[str, float] = {}
    for cost in figures.costs:
        totals[cost.model] = totals.get(cost.model, 0) + cost.cost_usd
    models = sorted(totals, key=lambda model: (model == "others", -totals[model], model))[: len(_CLASSES)]
    chart = fitting(lambda width, is_narrow: _cost_chart(figures, models, width, is_narrow), HALF_PX)
    keys = legend([(_CLASSES[at], f"{fitted(model, 24)} {dollars(totals[model])}") for at, model in enumerate(models)])
    return [card("Cost per day", _COST_LEAD, keys, chart), card("Cost by agent", _SPENDER_LEAD, *_spenders(figures))]


def _spenders(figures: Figures) -> list[Markup]:
    """Return the agents with the highest cost, and below them the conversations and tasks, where messages name them."""
    parts = [ranked_bars(figures.spenders, dollars)]
    for title, rows in (("By conversation", figures.conversations), ("By task", figures.tasks)):
        if rows:
            shown = [Ranked(fitted(row.name, _NAME_CHARS), row.value, row.note) for row in rows]
            parts += [element("p", text(title), class_="lead gap"), ranked_bars(shown, dollars, "c4")]
    return parts


def _cost_chart(figures: Figures, models: list[str], width: float, is_narrow: bool) -> Markup:
    days = sorted({cost.day for cost in figures.costs})[-_MAX_DAYS:]
    amounts = {(cost.day, cost.model): cost.cost_usd for cost in figures.costs}
    series = [
        (model, _CLASSES[at], [amounts.get((day, model), 0.0) for day in days]) for at, model in enumerate(models)
    ]
    labels = [(at, short_day(day)) for at, day in enumerate(days)]
    plane = Plane(width, 190 if is_narrow else 220, left=50)
    return stacked_columns(plane, "Cost per day", series, labels, lambda at: short_day(days[at]), dollars)


_REFUSAL_LEAD = "Refusals by limits and rules: by code, and the senders and subjects refused most often."


def refusal_cards(figures: Figures) -> list[Markup]:
    """Return the card of refusals."""
    if not figures.refusals:
        return [card("Refusals", _REFUSAL_LEAD, nothing("Nothing was refused."))]
    by_code = ranked_bars(figures.refusals, count, "c5")
    heading = element("p", text("Most often refused"), class_="lead gap")
    return [card("Refusals", _REFUSAL_LEAD, by_code, heading, ranked_bars(figures.refused, count, "c6"))]


_CONTENTION_LEAD = "Locks by total waiting time. Taken over: the lease of the holder expired."
_CONTENTION_HEADS = ("Resource", "Grants", "Mean wait", "Longest", "Taken over")
_MAX_CHARS = 32


def contention_cards(figures: Figures) -> list[Markup]:
    """Return the card of contention."""
    if not figures.contention:
        return [card("Contention", _CONTENTION_LEAD, nothing("No lock was taken."))]
    rows = [_contention_row(each) for each in figures.contention]
    return [
        card(
            "Contention",
            _CONTENTION_LEAD,
            element("div", table(_CONTENTION_HEADS, rows, frozenset({3})), class_="scroll"),
        )
    ]


def _contention_row(each: Contention) -> list[str]:
    mean = duration(each.wait_ms / each.waits) if each.waits else "–"
    longest = duration(each.wait_ms_max) if each.waits else "–"
    return [fitted(each.resource, _MAX_CHARS), count(each.grants), mean, longest, count(each.take_overs)]
