"""Who talks to whom: a square of names, darker where more was said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from posthouse.pipeline.report.charts.canvas import CHAR_PX, Plane, label, picture
from posthouse.pipeline.report.figures import Edge
from posthouse.pipeline.report.markup import Markup, element, text
from posthouse.pipeline.report.words import count, fitted

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
