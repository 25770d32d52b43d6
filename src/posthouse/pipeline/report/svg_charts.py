"""Charts as inline SVG: stacked columns, percentile bands on a logarithmic axis, and a sender-recipient matrix.

Sizes are CSS pixels. A chart is drawn once for each page width and never scaled, so its labels keep their size on a
phone. Hours are grouped into as many equal spans as fit the width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from posthouse.pipeline.report.figures import Edge
from posthouse.pipeline.report.markup import Markup, count, duration, element, fitted, join, text

CHAR_PX = 6.6  # width of a character in a label of 11 px, rounded up


@dataclass(frozen=True)
class Plane:
    """The drawing area of a chart: the picture without its margins."""

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
        """Return the x coordinate of a fraction from 0 (left) to 1 (right)."""
        return self.left + part * self.inner_width

    def y(self, part: float) -> float:
        """Return the y coordinate of a fraction from 0 (bottom) to 1 (top)."""
        return self.top + (1 - part) * self.inner_height


def picture(plane: Plane, title: str, *children: Markup) -> Markup:
    """Return a picture with a title for screen readers."""
    size = f"0 0 {plane.width:g} {plane.height:g}"
    return element("svg", *children, viewBox=size, width=plane.width, height=plane.height, role="img", aria_label=title)


def label(x: float, y: float, words: str, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Return a short text in a chart."""
    return element("text", text(words), x=x, y=y, text_anchor=anchor, class_=class_)


def grid_line(plane: Plane, y: float) -> Markup:
    """Return a horizontal grid line."""
    return element("line", x1=plane.left, x2=plane.width - plane.right, y1=y, y2=y, class_="grid")


def round_steps(maximum: float, count: int = 4) -> list[float]:
    """Return axis values: 0 and a few round values, the last not below the maximum."""
    if maximum <= 0:
        return [0.0, 1.0]
    raw = maximum / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= raw)
    if maximum >= count:  # counts are whole numbers
        step = max(1.0, step)
    return [step * number for number in range(math.ceil(maximum / step - 1e-9) + 1)]


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return a legend of (class, words) pairs."""
    items = [
        element("li", element("span", class_=f"swatch {class_}"), element("span", text(words)))
        for class_, words in entries
    ]
    return element("ul", *items, class_="legend")


def spread_labels(plane: Plane, labels: Sequence[tuple[float, str]]) -> Markup:
    """Return the labels of the x axis, without those that would overlap their predecessor."""
    parts: list[str] = []
    free_x = 0.0
    for x, words in labels:
        half = len(words) * CHAR_PX / 2
        center = min(max(x, half), plane.width - half)
        if center - half >= free_x:
            parts.append(label(center, plane.height - 7, words))
            free_x = center + half + CHAR_PX
    return Markup("".join(parts))


_STEPS = (1, 2, 3, 6, 12, 24, 24 * 7, 24 * 28)


class Spans:
    """Equal spans of hours that cover a history; at most `limit`."""

    def __init__(self, first: int, last: int, limit: int) -> None:
        self.step = next((step for step in _STEPS if last // step - first // step < limit), _STEPS[-1])
        self.first = first // self.step
        self.count = last // self.step - self.first + 1

    def index(self, hour: int) -> int:
        """Return the index of the span that contains an hour."""
        return hour // self.step - self.first

    def words(self, index: int) -> str:
        """Return the start of a span."""
        start = self._start(index)
        return f"{start.day} {start:%b}" if self.step >= 24 else f"{start.day} {start:%b} {start:%H:%M}"

    def labels(self) -> list[tuple[int, str]]:
        """Return labels for the spans that start a day, or for all spans if there are fewer than two days."""
        by_day = [index for index in range(self.count) if self.step >= 24 or self._start(index).hour == 0]
        if len(by_day) >= 2:
            return [(index, f"{self._start(index).day} {self._start(index):%b}") for index in by_day]
        return [(index, f"{self._start(index):%H:%M}") for index in range(self.count)]

    def _start(self, index: int) -> datetime:
        return datetime.fromtimestamp((self.first + index) * self.step * 3600, UTC)


#: Name, class, value of each column.
Series = tuple[str, str, Sequence[float]]


def stacked_columns(
    plane: Plane,
    title: str,
    series: Sequence[Series],
    labels: Sequence[tuple[int, str]],
    words: Callable[[int], str],
    shown: Callable[[float], str],
) -> Markup:
    """Draw stacked columns; `words` returns the name of a column, `shown` formats a value."""
    count = max((len(values) for _, _, values in series), default=0)
    totals = [sum(values[index] for _, _, values in series) for index in range(count)]
    steps = round_steps(max(totals, default=0))
    width = plane.inner_width / max(1, count)
    parts = [_grid(plane, steps, shown)]
    for index in range(count):
        parts.append(_column(plane, index, width, series, steps[-1], f"{words(index)}: {shown(totals[index])}"))
    positions = [(plane.left + (index + 0.5) * width, name) for index, name in labels]
    return picture(plane, title, *parts, spread_labels(plane, positions))


def _grid(plane: Plane, steps: Sequence[float], shown: Callable[[float], str]) -> Markup:
    parts = []
    for step in steps:
        y = plane.y(step / steps[-1])
        parts += [grid_line(plane, y), label(plane.left - 6, y + 4, shown(step), "end")]
    return join(parts)


def _column(plane: Plane, index: int, width: float, series: Sequence[Series], maximum: float, words: str) -> Markup:
    gap = min(4.0, width * 0.2)
    bottom = 0.0
    parts = []
    for _, class_, values in series:
        value = values[index]
        if value:
            top = plane.y((bottom + value) / maximum)
            height = plane.y(bottom / maximum) - top
            x = plane.left + index * width + gap / 2
            parts.append(
                element("rect", x=x, y=top, width=width - gap, height=height, class_=class_, rx=min(1.5, width / 6))
            )
            bottom += value
    return element("g", element("title", text(words)), *parts) if parts else Markup("")


_DECADES_MS = (0.001, 0.01, 0.1, 1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000)
_MIN_MS = 0.001
#: The edges of the bands in one span: p50, p90, p99.
Percentiles = tuple[float, float, float]


def bands(
    plane: Plane,
    title: str,
    points: Sequence[Percentiles | None],
    labels: Sequence[tuple[int, str]],
    words: Sequence[str],
    class_: str,
) -> Markup:
    """Draw the median as a line, with bands up to p90 and p99 above it; a span without values is a gap."""
    known = [max(_MIN_MS, value) for point in points if point for value in point]
    steps = _steps(min(known, default=1), max(known, default=1_000))
    low, high = math.log10(steps[0]), math.log10(steps[-1])
    width = plane.inner_width / max(1, len(points))

    def y(value: float) -> float:
        return plane.y(min(1.0, max(0.0, (math.log10(max(_MIN_MS, value)) - low) / (high - low))))

    parts: list[Markup] = []
    for step in steps:
        parts += [grid_line(plane, y(step)), label(plane.left - 6, y(step) + 4, duration(step), "end")]
    for index, point in enumerate(points):
        if point is not None:
            parts.append(
                _band(plane.left + index * width, width, [y(value) for value in point], class_, words[index], point)
            )
    parts.append(_median(plane.left, width, [None if point is None else y(point[0]) for point in points], class_))
    positions = [(plane.left + (index + 0.5) * width, name) for index, name in labels]
    return picture(plane, title, *parts, spread_labels(plane, positions))


def _band(x: float, width: float, edges: Sequence[float], class_: str, words: str, point: Percentiles) -> Markup:
    shown = ", ".join(f"{name} {duration(value)}" for name, value in zip(("median", "p90", "p99"), point, strict=True))
    rects = [
        element("rect", x=x, y=top, width=width, height=max(0.5, bottom - top), class_=f"{class_} {band}")
        for band, bottom, top in (("band1", edges[0], edges[1]), ("band2", edges[1], edges[2]))
    ]
    return element("g", element("title", text(f"{words}: {shown}")), *rects)


def _median(left: float, width: float, heights: Sequence[float | None], class_: str) -> Markup:
    """Return the line of the medians, which is interrupted by gaps."""
    steps: list[str] = []
    is_open = False
    for index, height in enumerate(heights):
        if height is not None:
            x = left + index * width
            steps.append(f"{'L' if is_open else 'M'}{x:.1f} {height:.1f}L{x + width:.1f} {height:.1f}")
        is_open = height is not None
    return element("path", d="".join(steps), class_=f"line {class_}") if steps else Markup("")


def _steps(low: float, high: float) -> list[float]:
    """Return axis values: round durations that enclose all values."""
    first = max((each for each in _DECADES_MS if each <= low), default=_DECADES_MS[0])
    last = min((each for each in _DECADES_MS if each >= high), default=_DECADES_MS[-1])
    chosen = [each for each in _DECADES_MS if first <= each <= last]
    return chosen if len(chosen) > 1 else [first, first * 10]


_SHADES = 6
_SLANT = 0.7071  # sine of 45 degrees


def matrix(width: float, title: str, edges: Sequence[Edge], max_names: int, name_chars: int) -> Markup:
    """Draw the names with the most traffic: a row per sender, a column per recipient."""
    senders, recipients = _largest(edges, max_names)
    amounts = {(edge.sender, edge.recipient): edge.deliveries for edge in edges}
    shown = {name: fitted(name, name_chars) for name in {*senders, *recipients}}
    longest = max((len(name) for name in shown.values()), default=1) * CHAR_PX
    left, top = longest + 10, longest * _SLANT + 18
    size = min(44.0, (width - left - longest * _SLANT - 4) / max(1, len(recipients)))
    plane = Plane(width, top + size * len(senders) + 6)
    maximum = max((amounts.get((a, b), 0) for a in senders for b in recipients), default=1) or 1
    parts: list[Markup] = []
    for column, name in enumerate(recipients):
        parts.append(_slanted(left + (column + 0.5) * size, top - 8, shown[name], name))
    for row, sender in enumerate(senders):
        y = top + row * size
        parts.append(_named(label(left - 8, y + size / 2 + 4, shown[sender], "end", "name"), sender))
        for column, recipient in enumerate(recipients):
            amount = amounts.get((sender, recipient), 0)
            parts.append(_cell(left + column * size, y, size, amount, maximum, f"{sender} → {recipient}"))
    return picture(plane, title, *parts)


def _largest(edges: Sequence[Edge], limit: int) -> tuple[list[str], list[str]]:
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for edge in edges:
        sent[edge.sender] += edge.deliveries
        received[edge.recipient] += edge.deliveries
    return [name for name, _ in sent.most_common(limit)], [name for name, _ in received.most_common(limit)]


def _cell(x: float, y: float, size: float, amount: int, maximum: int, pair: str) -> Markup:
    shade = 0 if not amount else 1 + min(_SHADES - 2, math.floor((_SHADES - 1) * math.sqrt(amount / maximum) - 1e-9))
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
