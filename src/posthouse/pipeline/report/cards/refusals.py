"""Refusals: which rules said no, and to whom."""

from __future__ import annotations

from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.markup import Markup, element, text
from posthouse.pipeline.report.parts import card, nothing, ranked_bars
from posthouse.pipeline.report.words import count

_LEAD = "How often a limit or a rule refused, by its code, and who met it most."


def cards(figures: Figures) -> list[Markup]:
    """Return the card of refusals."""
    if not figures.refusals:
        return [card("Refusals", _LEAD, nothing("Nothing was refused."))]
    by_code = ranked_bars(figures.refusals, count, "c5")
    heading = element("p", text("Most often refused"), class_="lead gap")
    return [card("Refusals", _LEAD, by_code, heading, ranked_bars(figures.refused, count, "c6"))]
