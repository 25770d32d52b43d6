"""Pictures that the server draws as SVG: the graph of who talks to whom, and small charts of rates.

Everything is an attribute or a class: the content security policy forbids inline styles. Labels come from agents, so
pictures are templates like every page and escape them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

GRAPH_WIDTH, GRAPH_HEIGHT = 720, 420
_MARGIN_Y = 46  # room for labels above and below
_LABEL_MAX = 26  # characters
_CHARACTER_X = 8.4  # width of a character of a label, at most
_NODES_MAX = 24  # more would not be readable: the least busy are left out
_BEND = 0.16  # how far an edge is curved, so that the edges of both directions do not overlap


class Vertex(NamedTuple):
    """A party of the graph."""

    key: str
    label: str
    #: host, agent or topic
    kind: str
    x: float = 0.0
    y: float = 0.0
    radius: float = 8.0
    #: text-anchor of the label: start, middle or end
    anchor: str = "middle"
    label_x: float = 0.0
    label_y: float = 0.0
    is_online: bool = False


class Arrow(NamedTuple):
    """An edge of the graph."""

    path: str
    #: 1 to 5: thickness by the number of messages
    weight: int
    words: str


class Graph(NamedTuple):
    """A graph that is ready to be drawn."""

    vertices: list[Vertex]
    arrows: list[Arrow]
    #: parties that were left out
    hidden: int
    #: the used part of the picture: y of its upper edge, and its size
    top: float
    height: float
    width: int = GRAPH_WIDTH


def draw_graph(vertices: Sequence[Vertex], counts: Mapping[tuple[str, str], int]) -> Graph:
    """Place the busiest parties on an ellipse, those of one host side by side, and connect them."""
    busy = {vertex.key: 0 for vertex in vertices}
    for (source, target), count in counts.items():
        busy[source] = busy.get(source, 0) + count
        busy[target] = busy.get(target, 0) + count
    chosen = sorted(vertices, key=lambda each: -busy[each.key])[:_NODES_MAX]
    order = {vertex.key: number for number, vertex in enumerate(vertices)}
    placed = _place(sorted(chosen, key=lambda each: order[each.key]), busy)
    by_key = {vertex.key: vertex for vertex in placed}
    most = max(counts.values(), default=1)
    arrows = [
        _arrow(by_key[source], by_key[target], count, most)
        for (source, target), count in sorted(counts.items(), key=lambda item: item[1])
        if source in by_key and target in by_key and source != target
    ]
    top = min((each.y for each in placed), default=0.0) - _MARGIN_Y
    bottom = max((each.y for each in placed), default=0.0) + _MARGIN_Y
    return Graph(placed, arrows, len(vertices) - len(placed), round(top, 1), round(bottom - top, 1))


def _place(vertices: Sequence[Vertex], busy: Mapping[str, int]) -> list[Vertex]:
    most = max((busy[each.key] for each in vertices), default=1) or 1
    middle_x, middle_y = GRAPH_WIDTH / 2, GRAPH_HEIGHT / 2
    placed = []
    longest = min(_LABEL_MAX, max((len(each.label) for each in vertices), default=0))
    margin_x = 30 + _CHARACTER_X * longest
    first_angle = math.pi if len(vertices) == 2 else math.pi / 2  # two vertices stand side by side
    for number, vertex in enumerate(vertices):
        angle = 2 * math.pi * number / len(vertices) - first_angle
        x = middle_x + (middle_x - margin_x) * math.cos(angle)
        y = middle_y + (middle_y - _MARGIN_Y) * math.sin(angle)
        radius = 7 + 9 * math.sqrt(busy[vertex.key] / most)
        anchor = "middle" if abs(math.cos(angle)) < 0.3 else "start" if math.cos(angle) > 0 else "end"
        gap = radius + 7
        placed.append(
            vertex._replace(
                label=vertex.label if len(vertex.label) <= _LABEL_MAX else vertex.label[: _LABEL_MAX - 1] + "…",
                x=round(x, 1),
                y=round(y, 1),
                radius=round(radius, 1),
                anchor=anchor,
                label_x=round(x + (0 if anchor == "middle" else gap * math.copysign(1, math.cos(angle))), 1),
                label_y=round(y + (4 if anchor != "middle" else (gap + 10) * math.copysign(1, math.sin(angle)) + 2), 1),
            )
        )
    return placed


def _arrow(source: Vertex, target: Vertex, count: int, most: int) -> Arrow:
    """Return a bowed line from the rim of one vertex to the rim of another."""
    dx, dy = target.x - source.x, target.y - source.y
    length = math.hypot(dx, dy) or 1.0
    control_x = (source.x + target.x) / 2 - dy * _BEND
    control_y = (source.y + target.y) / 2 + dx * _BEND
    start = _towards(source, control_x, control_y, source.radius + 2)
    end = _towards(target, control_x, control_y, target.radius + 6)
    path = f"M{start[0]:.1f} {start[1]:.1f}Q{control_x:.1f} {control_y:.1f} {end[0]:.1f} {end[1]:.1f}"
    weight = 1 + round(4 * math.log1p(count) / math.log1p(max(most, 1)))
    messages = "message" if count == 1 else "messages"
    return Arrow(path, min(5, weight) if length else 1, f"{source.label} to {target.label}: {count} {messages}")


def _towards(vertex: Vertex, x: float, y: float, distance: float) -> tuple[float, float]:
    length = math.hypot(x - vertex.x, y - vertex.y) or 1.0
    return vertex.x + (x - vertex.x) / length * distance, vertex.y + (y - vertex.y) / length * distance


class Spark(NamedTuple):
    """A small chart of one series: a line and the area below it."""

    line: str
    area: str
    most: float
    newest: float
    #: intervals between the first value and the newest
    steps: int
    width: int = 280
    height: int = 64


def draw_spark(values: Sequence[float], width: int = 280, height: int = 64) -> Spark | None:
    """Return the chart of a series, None if there is nothing to draw yet."""
    if len(values) < 2:
        return None
    most = max(values)
    step = width / (len(values) - 1)
    scale = (height - 6) / (most or 1.0)
    points = [f"{number * step:.1f} {height - 2 - value * scale:.1f}" for number, value in enumerate(values)]
    line = "M" + "L".join(points)
    return Spark(line, f"{line}L{width} {height}L0 {height}Z", most, values[-1], len(values) - 1, width, height)
