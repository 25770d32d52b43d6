"""What charts share: the plane they are drawn on, round steps for axes, legends.

Sizes are CSS pixels: a chart is drawn once for each width a page can have, and never scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.pipeline.report.markup import Markup, element, text

CHAR_PX = 6.6  # of a label of 11 px, on the wide side
LABEL_PX = 11


@dataclass(frozen=True)
class Plane:
    """Where a chart draws inside its picture."""

    width: float
    height: float
    left: float = 46
    right: float = 8
    top: float = 10
    bottom: float = 24

    @property
    def inner_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> float:
        return self.height - self.top - self.bottom

    def x(self, part: float) -> float:
        """Return where 0 (left) to 1 (right) is."""
        return self.left + part * self.inner_width

    def y(self, part: float) -> float:
        """Return where 0 (bottom) to 1 (top) is."""
        return self.top + (1 - part) * self.inner_height


def picture(plane: Plane, title: str, *children: Markup) -> Markup:
    """Return a picture with a title for those who cannot see it."""
    size = f"0 0 {plane.width:g} {plane.height:g}"
    return element("svg", *children, viewBox=size, width=plane.width, height=plane.height, role="img", aria_label=title)


def label(x: float, y: float, words: str, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Return a short text in a chart."""
    return element("text", text(words), x=x, y=y, text_anchor=anchor, class_=class_)


def grid_line(plane: Plane, y: float) -> Markup:
    """Return a line across the chart."""
    return element("line", x1=plane.left, x2=plane.width - plane.right, y1=y, y2=y, class_="grid")


def round_steps(most: float, count: int = 4) -> list[float]:
    """Return 0 and a few round values, the last at or above the largest."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= raw)
    if most >= count:  # counts have no halves
        step = max(1.0, step)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return what the colours stand for: (class, words)."""
    items = [
        element("li", element("span", class_=f"swatch {class_}"), element("span", text(words)))
        for class_, words in entries
    ]
    return element("ul", *items, class_="legend")


def spread_labels(plane: Plane, labels: Sequence[tuple[float, str]]) -> Markup:
    """Return labels below the chart, leaving out those that would touch the one before or the rim."""
    parts: list[str] = []
    free = 0.0
    for x, words in labels:
        half = len(words) * CHAR_PX / 2
        place = min(max(x, half), plane.width - half)
        if place - half >= free:
            parts.append(label(place, plane.height - 7, words))
            free = place + half + CHAR_PX
    return Markup("".join(parts))
