"""Building blocks of the page: cards, tiles, ranked bars, tables, pictures for each width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posthouse.pipeline.report.figures import Ranked
from posthouse.pipeline.report.markup import Markup, element, join, text

HALF_PX = 520  # inside a card that takes half of the page
WHOLE_PX = 1_090
MIDDLE_PX = 620  # inside a card that has the page for itself, from 700 on
NARROW_PX = 332  # inside a card on a phone of 390


def card(title: str, lead: str, *children: Markup, is_whole: bool = False) -> Markup:
    """Return a section of the page."""
    opening = [element("h2", text(title)), element("p", text(lead), class_="lead")]
    return element("section", *opening, *children, class_="whole" if is_whole else None)


def tile(what: str, value: str, note: str) -> Markup:
    """Return one large figure."""
    return element(
        "li",
        element("span", text(what), class_="what"),
        element("b", text(value)),
        element("span", text(note)),
        class_="tile",
    )


def nothing(words: str) -> Markup:
    """Return what stands where there is nothing to show."""
    return element("p", text(words), class_="none")


def fitting(draw: Callable[[float, bool], Markup], wide_px: float) -> Markup:
    """Return a chart drawn for a laptop, a tablet and a phone; the page shows the one that fits."""
    pictures = [element("div", draw(wide_px, False), class_="wide")]
    if wide_px > MIDDLE_PX:
        pictures.append(element("div", draw(MIDDLE_PX, False), class_="middle"))
    pictures.append(element("div", draw(NARROW_PX, True), class_="narrow"))
    return element("figure", *pictures, class_="large" if wide_px > MIDDLE_PX else None)


def ranked_bars(rows: Sequence[Ranked], shown: Callable[[float], str], class_: str = "c1") -> Markup:
    """Return names with bars, the longest for the largest value."""
    most = max((row.value for row in rows), default=0) or 1
    return element("ul", *[_bar(row, row.value / most, shown, class_) for row in rows], class_="bars")


def _bar(row: Ranked, part: float, shown: Callable[[float], str], class_: str) -> Markup:
    who = [text(row.name)]
    if row.note:
        who += [Markup(" "), element("span", text(row.note), class_="note")]
    return element(
        "li",
        element(
            "div",
            element("span", *who, class_="who"),
            element("span", text(shown(row.value)), class_="value"),
            class_="row",
        ),
        element(
            "div", element("span", class_=f"fill {class_}", style=f"width:{max(0.4, 100 * part):.1f}%"), class_="track"
        ),
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], minor: frozenset[int] = frozenset()) -> Markup:
    """Return a table whose first column is words and the others figures; minor columns are left out on a phone."""

    def cells(name: str, values: Sequence[str]) -> Markup:
        return join(
            element(
                name,
                text(value),
                class_=" ".join(filter(None, ("n" if at else "", "minor" if at in minor else ""))) or None,
            )
            for at, value in enumerate(values)
        )

    head = element("thead", element("tr", cells("th", heads)))
    body = element("tbody", *[element("tr", cells("td", row)) for row in rows])
    return element("table", head, body)
