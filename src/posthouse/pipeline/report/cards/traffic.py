"""Traffic: messages over time, relay and bus on top of each other."""

from __future__ import annotations

from posthouse.pipeline.report.charts.canvas import Plane, legend
from posthouse.pipeline.report.charts.columns import stacked_columns
from posthouse.pipeline.report.charts.spans import Spans
from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.markup import Markup
from posthouse.pipeline.report.parts import WHOLE_PX, card, fitting, nothing
from posthouse.pipeline.report.words import count

SOURCES = {"relay": "c1", "bus": "c2"}
_LEAD = "Messages that were accepted: by the relay between hosts, and by the bus on one host."


def cards(figures: Figures) -> list[Markup]:
    """Return the card of traffic."""
    if not figures.hours:
        return [card("Traffic", _LEAD, nothing("No message was accepted."), is_whole=True)]
    present = [source for source in SOURCES if any(hour.source == source for hour in figures.hours)]
    chart = fitting(lambda width, is_narrow: _chart(figures, present, width, is_narrow), WHOLE_PX)
    keys = legend([(SOURCES[source], source) for source in present])
    return [card("Traffic", _LEAD, keys, chart, is_whole=True)]


def _chart(figures: Figures, present: list[str], width: float, is_narrow: bool) -> Markup:
    spans = Spans(figures.hours[0].hour, figures.hours[-1].hour, 45 if is_narrow else 120)
    values = {source: [0.0] * spans.count for source in present}
    for hour in figures.hours:
        if hour.source in values:
            values[hour.source][spans.index(hour.hour)] += hour.messages
    series = [(source, SOURCES[source], values[source]) for source in present]
    plane = Plane(width, 190 if is_narrow else 230, left=40)
    title = f"Messages per {spans.step} h" if spans.step < 24 else "Messages per day"
    return stacked_columns(plane, title, series, spans.labels(), spans.words, count)
