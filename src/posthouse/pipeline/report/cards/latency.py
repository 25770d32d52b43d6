"""Latency: from accepted to confirmed or handled, middle and ninth tenth, one line per source and figure."""

from __future__ import annotations

from posthouse.pipeline.report.charts.canvas import Plane, legend
from posthouse.pipeline.report.charts.lines import log_lines
from posthouse.pipeline.report.charts.spans import Spans
from posthouse.pipeline.report.figures import Figures, Latency, middle
from posthouse.pipeline.report.markup import Markup
from posthouse.pipeline.report.parts import HALF_PX, card, fitting, nothing

_LEAD = "From accepted to taken, by the hour of the message. Offline readers make the upper lines."
_LINES = (
    ("relay", "p50_ms", "c1", "relay, half"),
    ("relay", "p90_ms", "c3", "relay, nine of ten"),
    ("bus", "p50_ms", "c2", "bus, half"),
    ("bus", "p90_ms", "c5", "bus, nine of ten"),
)


def cards(figures: Figures) -> list[Markup]:
    """Return the card of latency."""
    if not figures.latency:
        return [card("Time to be taken", _LEAD, nothing("No delivery has ended yet."))]
    sources = {row.source for row in figures.latency}
    lines = [line for line in _LINES if line[0] in sources]
    chart = fitting(lambda width, is_narrow: _chart(figures, lines, width, is_narrow), HALF_PX)
    return [card("Time to be taken", _LEAD, legend([(line[2], line[3]) for line in lines]), chart)]


def _chart(figures: Figures, lines: list[tuple[str, str, str, str]], width: float, is_narrow: bool) -> Markup:
    spans = Spans(figures.latency[0].hour, figures.latency[-1].hour, 45 if is_narrow else 90)
    words = [spans.words(index) for index in range(spans.count)]
    series = [(name, class_, _values(figures.latency, spans, source, figure)) for source, figure, class_, name in lines]
    plane = Plane(width, 220 if is_narrow else 250, left=52)
    return log_lines(plane, "Time from accepted to taken", series, spans.labels(), words)


def _values(rows: tuple[Latency, ...], spans: Spans, source: str, figure: str) -> list[float | None]:
    """Return what was usual in each span: the middle of its hours, weighed by their deliveries."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(spans.count)]
    for row in rows:
        if row.source == source:
            found[spans.index(row.hour)].append((getattr(row, figure), row.deliveries))
    return [middle(each) for each in found]
