"""The cards of traffic: messages, delivery outcomes and latency over time, and who talks to whom.

In every chart of the page successes are green, failures red, and waiting messages gray.
"""

from __future__ import annotations

from functools import partial

from posthouse.pipeline.gold_reader import FAILURES, middle
from posthouse.pipeline.report import markup
from posthouse.pipeline.report.figures import Edge, Figures, Latency, Ranked
from posthouse.pipeline.report.svg_charts import Plane, Spans, bands, legend, matrix, stacked_columns

SOURCES = {"relay": "c1", "bus": "c2", "host": "c4", "pinch": "c6"}
_TRAFFIC_LEAD = "Accepted messages: between hosts by the relay, on one host by the bus or as mail of its agents (host)."


def traffic_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of traffic."""
    if not figures.hours:
        return [markup.card("Traffic", _TRAFFIC_LEAD, markup.nothing("No message was accepted."), is_whole=True)]
    present = [source for source in SOURCES if any(hour.source == source for hour in figures.hours)]
    chart = markup.fitting(lambda width, is_narrow: _traffic_chart(figures, present, width, is_narrow), markup.WHOLE_PX)
    keys = legend([(SOURCES[source], source) for source in present])
    return [markup.card("Traffic", _TRAFFIC_LEAD, keys, chart, is_whole=True)]


def _traffic_chart(figures: Figures, present: list[str], width: float, is_narrow: bool) -> markup.Markup:
    spans = Spans(figures.hours[0].hour, figures.hours[-1].hour, 45 if is_narrow else 120)
    values = {source: [0.0] * spans.count for source in present}
    for hour in figures.hours:
        if hour.source in values:
            values[hour.source][spans.index(hour.hour)] += hour.messages
    series = [(source, SOURCES[source], values[source]) for source in present]
    plane = Plane(width, 190 if is_narrow else 230, left=40)
    title = f"Messages per {spans.step} h" if spans.step < 24 else "Messages per day"
    return stacked_columns(plane, title, series, spans.labels(), spans.words, markup.count)


_OUTCOME_LEAD = "Each message counts once per reader, with the current state of its delivery."
_OUTCOME_NOTES = {
    "delivered": "confirmed by its reader, or handled",
    "waiting": "queued or in flight",
    "rejected": "the reader rejected it",
    "failed": "a handler failed, or the reader never confirmed it",
    "expired": "not delivered before its time to live ended",
    "blocked": "the reader blocks the sender",
    "removed": "purged by an operator, or replaced",
}
_GOOD, _BAD, _OPEN = "c3", "c5", "c6"


def outcome_class(outcome: str) -> str:
    """Return the color of an outcome."""
    return _GOOD if outcome == "delivered" else _BAD if outcome in FAILURES else _OPEN


def outcome_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of outcomes: over time, and in total."""
    if not figures.outcomes:
        return [markup.card("Delivery outcomes", _OUTCOME_LEAD, markup.nothing("No deliveries yet."))]
    total = sum(row.value for row in figures.outcomes)
    rows = sorted(figures.outcomes, key=lambda row: -row.value)
    bars = [
        markup.ranked_bars(
            [Ranked(row.name, row.value, _OUTCOME_NOTES.get(row.name, ""))],
            lambda value: f"{markup.count(value)} · {markup.share(value, total)}",
            outcome_class(row.name),
            most=rows[0].value,
        )
        for row in rows
    ]
    keys = legend([(_GOOD, "delivered"), (_BAD, "failed, rejected or expired")])
    chart = markup.fitting(lambda width, is_narrow: _outcome_chart(figures, width, is_narrow), markup.HALF_PX)
    return [markup.card("Delivery outcomes", _OUTCOME_LEAD, keys, chart, markup.element("div", *bars, class_="gap"))]


def _outcome_chart(figures: Figures, width: float, is_narrow: bool) -> markup.Markup:
    spans = Spans(figures.hours[0].hour, figures.hours[-1].hour, 40 if is_narrow else 60)
    done, failed = [0.0] * spans.count, [0.0] * spans.count
    for hour in figures.hours:
        done[spans.index(hour.hour)] += hour.delivered
        failed[spans.index(hour.hour)] += hour.failed
    series = [("delivered", _GOOD, done), ("failed", _BAD, failed)]
    plane = Plane(width, 150 if is_narrow else 160, left=40)
    return stacked_columns(plane, "Delivery outcomes over time", series, spans.labels(), spans.words, markup.count)


_LATENCY_LEAD = "From accepted to confirmed or handled. Readers that were offline raise the upper band."


def latency_cards(figures: Figures) -> list[markup.Markup]:
    """Return the card of latency, with a chart for each source; all of them have the same hours."""
    if not figures.latency:
        return [markup.card("Delivery latency", _LATENCY_LEAD, markup.nothing("No delivery has ended yet."))]
    parts: list[markup.Markup] = [legend([("c1 line-key", "median"), ("c1 band1", "to p90"), ("c1 band2", "to p99")])]
    first, last = min(row.hour for row in figures.latency), max(row.hour for row in figures.latency)
    for source in (each for each in SOURCES if any(row.source == each for row in figures.latency)):
        rows = [row for row in figures.latency if row.source == source]
        median = middle((row.p50_ms, row.deliveries) for row in rows)
        words = f"{source}, median {markup.duration(median)}"
        chart = markup.fitting(partial(_latency_chart, rows, first, last), markup.HALF_PX)
        parts += [markup.element("p", markup.text(words), class_="lead"), chart]
    return [markup.card("Delivery latency", _LATENCY_LEAD, *parts)]


def _latency_chart(rows: list[Latency], first: int, last: int, width: float, is_narrow: bool) -> markup.Markup:
    spans = Spans(first, last, 45 if is_narrow else 90)
    words = [spans.words(index) for index in range(spans.count)]
    columns = [_span_latencies(rows, spans, figure) for figure in ("p50_ms", "p90_ms", "p99_ms")]
    points = [
        None if low is None or high is None or top is None else (low, high, top)
        for low, high, top in zip(*columns, strict=True)
    ]
    plane = Plane(width, 150 if is_narrow else 160, left=52)
    return bands(plane, "Delivery latency", points, spans.labels(), words, SOURCES[rows[0].source])


def _span_latencies(rows: list[Latency], spans: Spans, figure: str) -> list[float | None]:
    """Return the median of the hours in each span, weighted by their deliveries."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(spans.count)]
    for row in rows:
        found[spans.index(row.hour)].append((getattr(row, figure), row.deliveries))
    return [middle(each) for each in found]


_PAIR_TITLES = {"relay": "Who talks to whom, by relay", "bus": "Who talks to whom, on the bus"}
_PAIR_LEAD = "Deliveries per sender (row) and reader (column), for the busiest of each."


def pair_cards(figures: Figures) -> list[markup.Markup]:
    """Return a card for each source that has pairs."""
    found = [(source, edges) for source, edges in figures.edges.items() if edges]
    if not found:
        return [markup.card("Who talks to whom", _PAIR_LEAD, markup.nothing("No deliveries yet."))]
    found.sort(key=lambda pair: pair[0] != "relay")
    return [_pair_card(_PAIR_TITLES.get(source, f"Who talks to whom, {source}"), edges) for source, edges in found]


def _pair_card(title: str, edges: tuple[Edge, ...]) -> markup.Markup:
    def draw(width: float, is_narrow: bool) -> markup.Markup:
        max_names, characters = (6, 12) if is_narrow else (10, 17)
        return matrix(width, title, edges, max_names, characters)

    return markup.card(title, _PAIR_LEAD, markup.fitting(draw, markup.HALF_PX))
