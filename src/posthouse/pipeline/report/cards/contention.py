"""Contention: what agents waited for."""

from __future__ import annotations

from posthouse.pipeline.report.figures import Contention, Figures
from posthouse.pipeline.report.markup import Markup, element
from posthouse.pipeline.report.parts import card, nothing, table
from posthouse.pipeline.report.words import count, duration, fitted

_LEAD = "Locks by how long agents waited for them. Taken over: the holder let its lease run out."
_HEADS = ("Resource", "Grants", "Mean wait", "Longest", "Taken over")
_MOST_CHARS = 32


def cards(figures: Figures) -> list[Markup]:
    """Return the card of contention."""
    if not figures.contention:
        return [card("Contention", _LEAD, nothing("No lock was taken."))]
    rows = [_row(each) for each in figures.contention]
    return [card("Contention", _LEAD, element("div", table(_HEADS, rows, frozenset({3})), class_="scroll"))]


def _row(each: Contention) -> list[str]:
    mean = duration(each.wait_ms / each.waits) if each.waits else "–"
    longest = duration(each.wait_ms_max) if each.waits else "–"
    return [fitted(each.resource, _MOST_CHARS), count(each.grants), mean, longest, count(each.take_overs)]
