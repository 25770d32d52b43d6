"""Lines of times on a logarithmic axis: a second and an hour both have to be read off."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posthouse.pipeline.report.charts.canvas import Plane, grid_line, label, picture, spread_labels
from posthouse.pipeline.report.markup import Markup, element, join, text
from posthouse.pipeline.report.words import duration

_DECADES_MS = (0.001, 0.01, 0.1, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000)
_LEAST_MS = 0.001

#: name, class, values by span; None where there was nothing
Series = tuple[str, str, Sequence[float | None]]


def log_lines(
    plane: Plane, title: str, series: Sequence[Series], labels: Sequence[tuple[int, str]], words: Sequence[str]
) -> Markup:
    """Draw lines; a gap in the values is a gap in the line."""
    known = [max(_LEAST_MS, value) for _, _, values in series for value in values if value is not None]
    steps = _steps(min(known, default=1), max(known, default=1_000))
    low, high = math.log10(steps[0]), math.log10(steps[-1])
    count = len(words)

    def place(index: int, value: float) -> tuple[float, float]:
        part = (math.log10(max(_LEAST_MS, value)) - low) / (high - low)
        return plane.x((index + 0.5) / max(1, count)), plane.y(min(1.0, max(0.0, part)))

    parts: list[Markup] = []
    for step in steps:
        y = plane.y((math.log10(step) - low) / (high - low))
        parts += [grid_line(plane, y), label(plane.left - 6, y + 4, duration(step), "end")]
    for name, class_, values in series:
        points = [(index, *place(index, value), value) for index, value in enumerate(values) if value is not None]
        parts += [_path(points, class_), _dots(points, class_, name, words)]
    places = [(plane.x((index + 0.5) / max(1, count)), name) for index, name in labels]
    return picture(plane, title, *parts, spread_labels(plane, places))


def _steps(least: float, most: float) -> list[float]:
    """Return round times, the first below all values and the last above."""
    first = max((each for each in _DECADES_MS if each <= least), default=_DECADES_MS[0])
    last = min((each for each in _DECADES_MS if each >= most), default=_DECADES_MS[-1])
    chosen = [each for each in _DECADES_MS if first <= each <= last]
    return chosen if len(chosen) > 1 else [first, first * 10]


def _path(points: Sequence[tuple[int, float, float, float]], class_: str) -> Markup:
    steps: list[str] = []
    before = None
    for index, x, y, _ in points:
        steps.append(f"{'L' if before == index - 1 else 'M'}{x:.1f} {y:.1f}")
        before = index
    return element("path", d="".join(steps), class_=f"line {class_}") if steps else Markup("")


def _dots(points: Sequence[tuple[int, float, float, float]], class_: str, name: str, words: Sequence[str]) -> Markup:
    """Mark the values, so that one between two gaps is seen and each can be read."""
    return join(
        element(
            "circle",
            element("title", text(f"{words[index]}, {name}: {duration(value)}")),
            cx=x,
            cy=y,
            r=1.8,
            class_=class_,
        )
        for index, x, y, value in points
    )
