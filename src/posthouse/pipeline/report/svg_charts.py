"""Charts as inline SVG: stacked columns, lines on a logarithmic axis, and the matrix of who talks to whom.

Sizes are CSS pixels. A chart is drawn once for each width a page can have and never scaled, so its labels keep their
size on a phone. Hours are grouped into as many equal spans as a width has room for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from posthouse.pipeline.report.figures import Edge
from posthouse.pipeline.report.markup import Markup, count, duration, element, fitted, join, text

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


_STEPS = (1, 2, 3, 6, 12, 24, 24 * 7, 24 * 28)


class Spans:
    """Equal spans of hours that cover a history."""

    def __init__(self, first: int, last: int, most: int) -> None:
        self.step = next((step for step in _STEPS if last // step - first // step < most), _STEPS[-1])
        self.first = first // self.step
        self.count = last // self.step - self.first + 1

    def index(self, hour: int) -> int:
        """Return the number of the span an hour is in."""
        return hour // self.step - self.first

    def words(self, index: int) -> str:
        """Return when a span begins."""
        begin = self._begin(index)
        return f"{begin.day} {begin:%b}" if self.step >= 24 else f"{begin.day} {begin:%b} {begin:%H:%M}"

    def labels(self) -> list[tuple[int, str]]:
        """Return the spans that deserve a label: those with which a day begins, or each when there are few."""
        by_day = [index for index in range(self.count) if self.step >= 24 or self._begin(index).hour == 0]
        if len(by_day) >= 2:
            return [(index, f"{self._begin(index).day} {self._begin(index):%b}") for index in by_day]
        return [(index, f"{self._begin(index):%H:%M}") for index in range(self.count)]

    def _begin(self, index: int) -> datetime:
        return datetime.fromtimestamp((self.first + index) * self.step * 3600, UTC)


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


_DECADES_MS = (0.001, 0.01, 0.1, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000)
_LEAST_MS = 0.001
#: name, class, values by span; None where there was nothing
LogSeries = tuple[str, str, Sequence[float | None]]


def log_lines(
    plane: Plane, title: str, series: Sequence[LogSeries], labels: Sequence[tuple[int, str]], words: Sequence[str]
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


_SHADES = 6
_SLANT = 0.7071  # of 45 degrees


def matrix(width: float, title: str, edges: Sequence[Edge], most_names: int, name_chars: int) -> Markup:
    """Draw the names with most traffic, senders down and recipients across."""
    senders, recipients = _largest(edges, most_names)
    amounts = {(edge.sender, edge.recipient): edge.deliveries for edge in edges}
    shown = {name: fitted(name, name_chars) for name in {*senders, *recipients}}
    longest = max((len(name) for name in shown.values()), default=1) * CHAR_PX
    left, top = longest + 10, longest * _SLANT + 18
    size = min(44.0, (width - left - longest * _SLANT - 4) / max(1, len(recipients)))
    plane = Plane(width, top + size * len(senders) + 6)
    most = max((amounts.get((a, b), 0) for a in senders for b in recipients), default=1) or 1
    parts: list[Markup] = []
    for column, name in enumerate(recipients):
        parts.append(_slanted(left + (column + 0.5) * size, top - 8, shown[name], name))
    for row, sender in enumerate(senders):
        y = top + row * size
        parts.append(_named(label(left - 8, y + size / 2 + 4, shown[sender], "end", "name"), sender))
        for column, recipient in enumerate(recipients):
            amount = amounts.get((sender, recipient), 0)
            parts.append(_cell(left + column * size, y, size, amount, most, f"{sender} → {recipient}"))
    return picture(plane, title, *parts)


def _largest(edges: Sequence[Edge], most: int) -> tuple[list[str], list[str]]:
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for edge in edges:
        sent[edge.sender] += edge.deliveries
        received[edge.recipient] += edge.deliveries
    return [name for name, _ in sent.most_common(most)], [name for name, _ in received.most_common(most)]


def _cell(x: float, y: float, size: float, amount: int, most: int, pair: str) -> Markup:
    shade = 0 if not amount else 1 + min(_SHADES - 2, math.floor((_SHADES - 1) * math.sqrt(amount / most) - 1e-9))
    title = element("title", text(f"{pair}: {count(amount)}"))
    square = element("rect", title, x=x + 1, y=y + 1, width=size - 2, height=size - 2, rx=3, class_=f"shade{shade}")
    if not amount or size < 24:
        return square
    words = count(amount)
    if len(words) * CHAR_PX > size - 2:
        return square
    return Markup(square + label(x + size / 2, y + size / 2 + 4, words, class_=f"amount on{shade}"))


def _slanted(x: float, y: float, words: str, whole: str) -> Markup:
    return element(
        "text",
        text(words),
        element("title", text(whole)),
        transform=f"translate({x:.1f} {y:.1f}) rotate(-45)",
        class_="name",
    )


def _named(drawn: Markup, whole: str) -> Markup:
    return element("g", drawn, element("title", text(whole)))
