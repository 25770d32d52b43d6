"""Who talks to whom: a matrix for each source."""

from __future__ import annotations

from posthouse.pipeline.report.charts.matrix import matrix
from posthouse.pipeline.report.figures import Edge, Figures
from posthouse.pipeline.report.markup import Markup
from posthouse.pipeline.report.parts import HALF_PX, card, fitting, nothing

_TITLES = {"relay": "Who talks to whom, by relay", "bus": "Who talks to whom, on the bus"}
_LEAD = "Senders down, readers across; the busiest of each. Numbers are deliveries."


def cards(figures: Figures) -> list[Markup]:
    """Return a card for each source that has pairs."""
    found = [(source, edges) for source, edges in figures.edges.items() if edges]
    if not found:
        return [card("Who talks to whom", _LEAD, nothing("Nobody has talked to anybody yet."))]
    found.sort(key=lambda pair: pair[0] != "relay")
    return [_card(_TITLES.get(source, f"Who talks to whom, {source}"), edges) for source, edges in found]


def _card(title: str, edges: tuple[Edge, ...]) -> Markup:
    def draw(width: float, is_narrow: bool) -> Markup:
        most, characters = (6, 12) if is_narrow else (10, 17)
        return matrix(width, title, _plain(edges), most, characters)

    return card(title, _LEAD, fitting(draw, HALF_PX))


def _plain(edges: tuple[Edge, ...]) -> list[Edge]:
    """Leave out what all names begin and end with: on a bus that is most of a subject."""
    names = sorted({name for edge in edges for name in (edge.sender, edge.recipient)})
    shown = _shortened(names)
    return [Edge(shown[edge.sender], shown[edge.recipient], edge.deliveries) for edge in edges]


def _shortened(names: list[str]) -> dict[str, str]:
    """Drop the first and last tokens that most names share, where names stay distinct."""
    split = [name.split(".") for name in names]
    usual = [parts for parts in split if len(parts) == 3]
    if len(usual) * 2 <= len(names):
        return {name: name for name in names}
    first, last = usual[0][0], usual[0][-1]
    short = {
        name: parts[1] if len(parts) == 3 and (parts[0], parts[-1]) == (first, last) else name
        for name, parts in zip(names, split, strict=True)
    }
    return short if len(set(short.values())) == len(names) else {name: name for name in names}
