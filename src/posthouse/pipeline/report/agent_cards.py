"""The cards of agents: the health of each, the slowest answers, cost, refusals and lock contention."""

from __future__ import annotations

from posthouse.pipeline.report import markup
from posthouse.pipeline.report.audit_cards import trace_link
from posthouse.pipeline.report.figures import AgentHealth, Contention, Figures, Ranked
from posthouse.pipeline.report.svg_charts import Plane, legend, stacked_columns

_AGENT_LEAD = (
    "Backlog: waiting deliveries. Latency: time until the agent confirmed or handled a message, in its median hour. "
    "Answer: median time to a reply. Loops: messages refused because their budget was spent."
)
_AGENT_HEADS = (
    *("Agent", "Sent", "Received", "Backlog", "Failed", "Latency p50", "p90", "Answer"),
    *("Loops stopped", "Lock waits", "Refused", "Cost"),
)
_AGENT_MINOR = frozenset({1, 2, 6, 7, 8, 9, 10})
_AGENT_WIDE = frozenset({6, 9, 10})
_AGENT_CHARS = 28


def agent_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of the health of every agent."""
    if not figures.agents:
        return [
            markup.card(
                "Agents", _AGENT_LEAD, markup.nothing("No agent has sent or received a message."), is_whole=True
            )
        ]
    rows = [_agent_row(each) for each in figures.agents]
    health = markup.element("div", markup.table(_AGENT_HEADS, rows, _AGENT_MINOR, wide=_AGENT_WIDE), class_="scroll")
    return [markup.card("Agents", _AGENT_LEAD, health, is_whole=True)]


def _agent_row(each: AgentHealth) -> list[str]:
    waits = f"{markup.count(each.lock_waits)} · {markup.duration(each.lock_wait_ms)}" if each.lock_waits else "–"
    return [
        markup.fitted(each.agent, _AGENT_CHARS),
        markup.count(each.sent),
        markup.count(each.received),
        _alarm(each.waiting, "warn"),
        _alarm(each.failed, "fail"),
        markup.duration(each.p50_ms),
        markup.duration(each.p90_ms),
        markup.duration(each.answer_ms),
        _alarm(each.loops_stopped, "warn"),
        waits,
        _alarm(each.refused, "warn"),
        markup.dollars(each.cost_usd) if each.cost_usd else "–",
    ]


def _alarm(value: int, class_: str) -> str:
    """Return a number that stands out unless it is 0."""
    return markup.element("b", markup.text(markup.count(value)), class_=class_) if value else "–"


_ANSWER_LEAD = "The replies that took longest, from the message to its first answer by that agent."


def answer_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of the slowest answers."""
    if not figures.slow_answers:
        return [markup.card("Slowest answers", _ANSWER_LEAD, markup.nothing("No message was answered."))]
    rows: list[list[str]] = [
        [
            f"{markup.fitted(each.agent, _AGENT_CHARS)} to {markup.fitted(each.asker, _AGENT_CHARS)}",
            markup.duration(each.answer_ms),
            trace_link(figures, each.message_id),
        ]
        for each in figures.slow_answers
    ]
    return [markup.card("Slowest answers", _ANSWER_LEAD, markup.table(("Answer", "Took", ""), rows))]


_COST_LEAD = "Usage that messages report, by day and model."
_SPENDER_LEAD = "The agents with the highest cost."
_MAX_DAYS = 60
_NAME_CHARS = 40
_CLASSES = ("c1", "c2", "c3", "c4", "c5", "c6")


def cost_cards(figures: Figures) -> list[markup.Markup]:
    """Return the cards of costs."""
    if not figures.costs:
        return [markup.card("Cost", _COST_LEAD, markup.nothing("No message reported its usage."))]
    totals: dict[str, float] = {}
    for cost in figures.costs:
        totals[cost.model] = totals.get(cost.model, 0) + cost.cost_usd
    models = sorted(totals, key=lambda model: (model == "others", -totals[model], model))[: len(_CLASSES)]
    chart = markup.fitting(lambda width, is_narrow: _cost_chart(figures, models, width, is_narrow), markup.HALF_PX)
    keys = legend(
        [
            (_CLASSES[at], f"{markup.fitted(model, 24)} {markup.dollars(totals[model])}")
            for at, model in enumerate(models)
        ]
    )
    return [
        markup.card("Cost per day", _COST_LEAD, keys, chart),
        markup.card("Cost by agent", _SPENDER_LEAD, *_spenders(figures)),
    ]


def _spenders(figures: Figures) -> list[markup.Markup]:
    """Return the agents with the highest cost, and below them the conversations and tasks, where messages name them."""
    parts = [markup.ranked_bars(figures.spenders, markup.dollars)]
    for title, rows in (("By conversation", figures.conversations), ("By task", figures.tasks)):
        if rows:
            shown = [Ranked(markup.fitted(row.name, _NAME_CHARS), row.value, row.note) for row in rows]
            parts += [
                markup.element("p", markup.text(title), class_="lead gap"),
                markup.ranked_bars(shown, markup.dollars, "c4"),
            ]
    return parts


def _cost_chart(figures: Figures, models: list[str], width: float, is_narrow: bool) -> markup.Markup:
    days = sorted({cost.day for cost in figures.costs})[-_MAX_DAYS:]
    amounts = {(cost.day, cost.model): cost.cost_usd for cost in figures.costs}
    series = [
        (model, _CLASSES[at], [amounts.get((day, model), 0.0) for day in days]) for at, model in enumerate(models)
    ]
    labels = [(at, markup.short_day(day)) for at, day in enumerate(days)]
    plane = Plane(width, 190 if is_narrow else 220, left=50)
    return stacked_columns(plane, "Cost per day", series, labels, lambda at: markup.short_day(days[at]), markup.dollars)


_REFUSAL_LEAD = "Refusals by limits and rules: by code, and the senders and subjects refused most often."


def refusal_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of refusals."""
    if not figures.refusals:
        return [markup.card("Refusals", _REFUSAL_LEAD, markup.nothing("Nothing was refused."))]
    by_code = markup.ranked_bars(figures.refusals, markup.count, "c5")
    heading = markup.element("p", markup.text("Most often refused"), class_="lead gap")
    return [
        markup.card(
            "Refusals", _REFUSAL_LEAD, by_code, heading, markup.ranked_bars(figures.refused, markup.count, "c6")
        )
    ]


_CONTENTION_LEAD = "Locks by total waiting time. Taken over: the lease of the holder expired."
_CONTENTION_HEADS = ("Resource", "Grants", "Mean wait", "Longest", "Taken over")
_MAX_CHARS = 32


def contention_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of contention."""
    if not figures.contention:
        return [markup.card("Contention", _CONTENTION_LEAD, markup.nothing("No lock was taken."))]
    rows = [_contention_row(each) for each in figures.contention]
    return [
        markup.card(
            "Contention",
            _CONTENTION_LEAD,
            markup.element("div", markup.table(_CONTENTION_HEADS, rows, frozenset({3})), class_="scroll"),
        )
    ]


def _contention_row(each: Contention) -> list[str]:
    mean = markup.duration(each.wait_ms / each.waits) if each.waits else "–"
    longest = markup.duration(each.wait_ms_max) if each.waits else "–"
    return [
        markup.fitted(each.resource, _MAX_CHARS),
        markup.count(each.grants),
        mean,
        longest,
        markup.count(each.take_overs),
    ]
