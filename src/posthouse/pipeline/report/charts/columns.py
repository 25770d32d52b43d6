"""Stacked columns over time or days."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posthouse.pipeline.report.charts.canvas import Plane, grid_line, label, picture, round_steps, spread_labels
from posthouse.pipeline.report.markup import Markup, element, join, text

Series = tuple[str, str, Sequence[float]]


def stacked_columns(
    plane: Plane,
    title: str,
    series: Sequence[Series],
    labels: Sequence[tuple[int, str]],
    words: Callable[[int], str],
    shown: Callable[[float], str],
) -> Markup:
    """Draw series (name, class, values) on top of each other; `words` names a column, `shown` a value."""
    count = max((len(values) for _, _, values in series), default=0)
    totals = [sum(values[index] for _, _, values in series) for index in range(count)]
    steps = round_steps(max(totals, default=0))
    width = plane.inner_width / max(1, count)
    parts = [_rulers(plane, steps, shown)]
    for index in range(count):
        parts.append(_column(plane, index, width, series, steps[-1], f"{words(index)}: {shown(totals[index])}"))
    places = [(plane.left + (index + 0.5) * width, name) for index, name in labels]
    return picture(plane, title, *parts, spread_labels(plane, places))


def _rulers(plane: Plane, steps: Sequence[float], shown: Callable[[float], str]) -> Markup:
    parts = []
    for step in steps:
        y = plane.y(step / steps[-1])
        parts += [grid_line(plane, y), label(plane.left - 6, y + 4, shown(step), "end")]
    return join(parts)


def _column(plane: Plane, index: int, width: float, series: Sequence[Series], most: float, words: str) -> Markup:
    gap = min(4.0, width * 0.2)
    bottom = 0.0
    parts = []
    for _, class_, values in series:
        value = values[index]
        if value:
            top = plane.y((bottom + value) / most)
            height = plane.y(bottom / most) - top
            x = plane.left + index * width + gap / 2
            parts.append(
                element("rect", x=x, y=top, width=width - gap, height=height, class_=class_, rx=min(1.5, width / 6))
            )
            bottom += value
    return element("g", element("title", text(words)), *parts) if parts else Markup("")
