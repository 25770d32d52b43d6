"""What became of deliveries."""

from __future__ import annotations

from posthouse.pipeline.report.figures import Figures, Ranked
from posthouse.pipeline.report.markup import Markup
from posthouse.pipeline.report.parts import card, nothing, ranked_bars
from posthouse.pipeline.report.words import count, share

_LEAD = "Each message counts once per reader, in the state its delivery has now."
_WORDS = {
    "delivered": "confirmed by its reader, or handled",
    "waiting": "queued or in flight",
    "rejected": "the reader said no",
    "failed": "a handler failed, or the reader choked on it",
    "expired": "nobody took it in time",
    "blocked": "the reader blocks the sender",
    "removed": "purged by an operator, or replaced",
}


def cards(figures: Figures) -> list[Markup]:
    """Return the card of outcomes."""
    if not figures.outcomes:
        return [card("What became of deliveries", _LEAD, nothing("Nothing was delivered yet."))]
    total = sum(row.value for row in figures.outcomes)
    rows = [Ranked(row.name, row.value, _WORDS.get(row.name, "")) for row in figures.outcomes]
    rows.sort(key=lambda row: -row.value)
    return [
        card(
            "What became of deliveries",
            _LEAD,
            ranked_bars(rows, lambda value: f"{count(value)} · {share(value, total)}", "c3"),
        )
    ]
