"""The report page: one self-contained HTML file, without scripts or network access.

The cards come from traffic_cards, agent_cards and audit_cards; each `..._cards` function returns those of one topic.
Every chart is drawn for laptop, tablet and phone; colors follow the light or dark mode of the system, and printed pages
are light. posthouse.pipeline.report.markup escapes all text that comes from agents.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from posthouse.pipeline.report import markup
from posthouse.pipeline.report.agent_cards import agent_cards, answer_cards, contention_cards, cost_cards, refusal_cards
from posthouse.pipeline.report.audit_cards import audit_cards, trace_cards
from posthouse.pipeline.report.figures import Figures, Totals
from posthouse.pipeline.report.markup import Markup, element, text, tile
from posthouse.pipeline.report.traffic_cards import latency_cards, outcome_cards, pair_cards, traffic_cards

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CardFunction = Callable[[Figures], list[Markup]]
#: Cards in the order of the page; the cards of an inner tuple stand below each other in one column.
_CARDS = (
    *(traffic_cards, outcome_cards, latency_cards, agent_cards),
    *((answer_cards, contention_cards), (refusal_cards, audit_cards)),
    *(cost_cards, pair_cards, trace_cards),
)


def render_page(figures: Figures) -> str:
    """Return the page."""
    style = files("posthouse.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("title", text("posthouse report")),
        element("style", Markup(style)),
    )
    grid = element("div", *[part for cards in _CARDS for part in _column(cards, figures)], class_="cards")
    main = element("main", _header(figures), _tiles(figures), grid, _footer(figures), id="top")
    return f'<!DOCTYPE html>\n<html lang="en">{head}{element("body", main)}</html>\n'


def _column(cards: CardFunction | tuple[CardFunction, ...], figures: Figures) -> list[Markup]:
    if not isinstance(cards, tuple):
        return cards(figures)
    return [element("div", *[part for each in cards for part in each(figures)], class_="stack")]


def _header(figures: Figures) -> Markup:
    if figures.hours:
        first, last = figures.hours[0].hour * 3600, (figures.hours[-1].hour + 1) * 3600
        period = f"{markup.moment(first)} to {markup.moment(last)}"
    else:
        period = "The lake holds no traffic yet"
    limits = [element("span", text(each), class_="chip") for each in figures.limits]
    return element(
        "header",
        element("h1", text("Agent activity")),
        element("p", text(period), *(part for each in limits for part in (Markup(" "), each)), class_="soft"),
    )


def _tiles(figures: Figures) -> Markup:
    now, before = figures.now, figures.before
    overs = sum(row.take_overs for row in figures.contention)

    def compared(title: str, shown: str, note: str, figure: Callable[[Totals], float | None], good: int) -> Markup:
        change = [] if before is None else _change(figure(now), figure(before), good)
        return tile(title, shown, note, *change)

    delivered = f"of {markup.count(now.deliveries)} deliveries"
    return element(
        "ul",
        compared("Messages", markup.count(now.messages), _by_source(figures), lambda each: each.messages, 0),
        compared("Delivered", markup.share(now.delivered, now.deliveries), delivered, _delivered, 1),
        compared("Delivery latency", markup.duration(now.latency_ms), "median hour", lambda each: each.latency_ms, -1),
        compared("Failed", markup.count(now.failed), "dead, rejected or expired", lambda each: each.failed, -1),
        compared(
            "Cost",
            markup.dollars(now.cost_usd),
            f"{markup.count(figures.tokens)} tokens",
            lambda each: each.cost_usd,
            -1,
        ),
        compared(
            "Waits for locks",
            markup.duration(now.lock_wait_ms),
            f"{markup.count(overs)} locks taken over",
            lambda each: each.lock_wait_ms,
            -1,
        ),
        class_="tiles",
    )


def _delivered(totals: Totals) -> float | None:
    return totals.delivered / totals.deliveries if totals.deliveries else None


def _change(now: float | None, before: float | None, good: int = 0) -> list[Markup]:
    """Return the change since the previous period; `good` is 1 if more is better, -1 if less is."""
    if before is None or now is None:
        return []
    if not before:
        return [element("span", text("0 in the previous period"), class_="change")] if now else []
    percent = 100 * (now - before) / before
    if abs(percent) < 0.5:
        return [element("span", text("same as in the previous period"), class_="change")]
    verdict = "" if not good else " better" if (percent > 0) == (good > 0) else " worse"
    shown = f"{percent:+.0f} %" if abs(percent) < 1_000 else f"{now / before:.0f} times"
    return [element("span", text(f"{shown} vs. the previous period"), class_=f"change{verdict}")]


def _by_source(figures: Figures) -> str:
    sums: dict[str, int] = {}
    for hour in figures.hours:
        sums[hour.source] = sums.get(hour.source, 0) + hour.messages
    return (
        ", ".join(f"{markup.count(value)} {source}" for source, value in sorted(sums.items(), reverse=True)) or "none"
    )


def _footer(figures: Figures) -> Markup:
    made = f"Made by posthouse pipeline report on {markup.moment(figures.made_at_s)}. All times are UTC."
    return element("footer", element("p", text(made)))
