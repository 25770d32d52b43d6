"""The page: one HTML file that needs nothing else, no script, no network.

Every chart is drawn twice, for a laptop and for a phone; colours follow what the reader's system prefers. All words
that come from agents pass through posthouse.pipeline.report.markup.
"""

from __future__ import annotations

from importlib.resources import files

from posthouse.pipeline.report import words
from posthouse.pipeline.report.cards import audit, contention, cost, latency, outcomes, pairs, refusals, traffic
from posthouse.pipeline.report.figures import Figures, middle
from posthouse.pipeline.report.markup import Markup, element, text
from posthouse.pipeline.report.parts import tile

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_BEFORE = (traffic, outcomes, latency, cost, refusals)
_STACKED = (contention, audit)
_AFTER = (pairs,)


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
    stack = element("div", *[part for module in _STACKED for part in module.cards(figures)], class_="stack")
    before = [part for module in _BEFORE for part in module.cards(figures)]
    after = [part for module in _AFTER for part in module.cards(figures)]
    cards = element("div", *before, stack, *after, class_="cards")
    body = element("body", element("main", _header(figures), _tiles(figures), cards, _footer(figures)))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _header(figures: Figures) -> Markup:
    if figures.hours:
        first, last = figures.hours[0].hour * 3600, (figures.hours[-1].hour + 1) * 3600
        period = f"{words.moment(first)} to {words.moment(last)}"
    else:
        period = "The lake holds no traffic yet"
    return element("header", element("h1", text("What the agents did")), element("p", text(period), class_="soft"))


def _tiles(figures: Figures) -> Markup:
    opened = sum(row.value for row in figures.outcomes)
    done = sum(row.value for row in figures.outcomes if row.name == "delivered")
    usual_ms = middle((row.p50_ms, row.deliveries) for row in figures.latency)
    refused = sum(row.value for row in figures.refusals)
    grants = sum(row.grants for row in figures.contention)
    overs = sum(row.take_overs for row in figures.contention)
    return element(
        "ul",
        tile("Messages", words.count(figures.messages), _by_source(figures)),
        tile("Delivered", words.share(done, opened), f"of {words.count(opened)} deliveries"),
        tile("Time to be taken", words.duration(usual_ms), "in the usual hour"),
        tile("Cost", words.dollars(figures.cost_usd), f"{words.count(figures.tokens)} tokens"),
        tile("Refused", words.count(refused), "by limits and rules"),
        tile("Locks granted", words.count(grants), f"{words.count(overs)} taken over"),
        class_="tiles",
    )


def _by_source(figures: Figures) -> str:
    sums: dict[str, int] = {}
    for hour in figures.hours:
        sums[hour.source] = sums.get(hour.source, 0) + hour.messages
    return ", ".join(f"{words.count(value)} {source}" for source, value in sorted(sums.items(), reverse=True)) or "none"


def _footer(figures: Figures) -> Markup:
    made = f"Made by posthouse pipeline report on {words.moment(figures.made_at_s)}. All times are UTC."
    return element("footer", element("p", text(made)))
