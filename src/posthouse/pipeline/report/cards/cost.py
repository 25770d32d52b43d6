"""Costs: dollars a day by model, and who spent most."""

from __future__ import annotations

from posthouse.pipeline.report.charts.canvas import Plane, legend
from posthouse.pipeline.report.charts.columns import stacked_columns
from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.markup import Markup
from posthouse.pipeline.report.parts import HALF_PX, card, fitting, nothing, ranked_bars
from posthouse.pipeline.report.words import dollars, fitted, short_day

_LEAD = "What messages say about their own making: usage by day and model."
_MOST_DAYS = 60
_CLASSES = ("c1", "c2", "c3", "c4", "c5", "c6")


def cards(figures: Figures) -> list[Markup]:
    """Return the cards of costs."""
    if not figures.costs:
        return [card("Cost", _LEAD, nothing("No message told its usage."))]
    totals: dict[str, float] = {}
    for cost in figures.costs:
        totals[cost.model] = totals.get(cost.model, 0) + cost.cost_usd
    models = sorted(totals, key=lambda model: (model == "others", -totals[model], model))[: len(_CLASSES)]
    chart = fitting(lambda width, is_narrow: _chart(figures, models, width, is_narrow), HALF_PX)
    keys = legend([(_CLASSES[at], f"{fitted(model, 24)} {dollars(totals[model])}") for at, model in enumerate(models)])
    return [
        card("Cost per day", _LEAD, keys, chart),
        card("Who spent most", "Senders by the cost of what they said.", ranked_bars(figures.spenders, dollars)),
    ]


def _chart(figures: Figures, models: list[str], width: float, is_narrow: bool) -> Markup:
    days = sorted({cost.day for cost in figures.costs})[-_MOST_DAYS:]
    amounts = {(cost.day, cost.model): cost.cost_usd for cost in figures.costs}
    series = [
        (model, _CLASSES[at], [amounts.get((day, model), 0.0) for day in days]) for at, model in enumerate(models)
    ]
    labels = [(at, short_day(day)) for at, day in enumerate(days)]
    plane = Plane(width, 190 if is_narrow else 220, left=50)
    return stacked_columns(plane, "Cost per day", series, labels, lambda at: short_day(days[at]), dollars)
