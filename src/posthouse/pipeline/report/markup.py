"""HTML elements of the page: escaping, number formats, cards, tiles, bars and tables.

Only `text` converts text to Markup, and it escapes; only Markup is inserted into the page unchanged. This matters
because agents choose names, subjects and reasons, which may contain any characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from html import escape

from posthouse.pipeline.report.figures import Ranked


def count(value: float) -> str:
    """Return a number as 1,234 or 123k or 4.5M."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    if abs(value) >= 100_000:
        return f"{value / 1000:.0f}k"
    return f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """Return a percentage; 100 % and 0 % only if they are exact."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 99.9 < percent < 100:
        return "99.9 %"
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent % 1 else f"{percent:.0f} %"


def duration(ms: float | None) -> str:
    """Return a duration in a suitable unit."""
    if ms is None:
        return "–"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= size:
            value = ms / size
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{ms:.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:.1f} ms"


def dollars(value: float) -> str:
    """Return an amount of money."""
    if value and abs(value) < 0.01:
        return "<$0.01"
    return f"${value:,.2f}" if abs(value) < 10_000 else f"${value:,.0f}"


def short_day(day: str) -> str:
    """Return 2026-03-02 as 2 Mar."""
    found = date.fromisoformat(day)
    return f"{found.day} {found:%b}"


def moment(at_s: float) -> str:
    """Return a time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%-d %B %Y, %H:%M UTC")


def fitted(name: str, characters: int) -> str:
    """Shorten a name to a number of characters."""
    return name if len(name) <= characters else f"{name[: max(1, characters - 1)]}…"


class Markup(str):
    """Text that is inserted into the page unchanged."""

    __slots__ = ()


_EMPTY = {"path", "rect", "line", "circle", "meta"}
_CONTROL = dict.fromkeys((*range(32), 127, *range(128, 160), 8206, 8207, *range(8234, 8239), *range(8294, 8298)), " ")


def text(value: object) -> Markup:
    """Escape plain text; control characters and characters that change the text direction become spaces."""
    return Markup(escape(str(value).translate(_CONTROL), quote=True))


def element(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """Return an element; `class_` means class, `_` in names means a hyphen, and None omits an attribute."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{text(_number(value))}"')
    opened = " ".join(parts)
    if not children and name in _EMPTY:
        return Markup(f"<{opened}/>")
    return Markup(f"<{opened}>{''.join(children)}</{name}>")


def join(parts: Iterable[Markup]) -> Markup:
    """Concatenate markup."""
    return Markup("".join(parts))


def _number(value: object) -> object:
    """Round coordinates to visible digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


# Inner widths of cards, in CSS pixels.
HALF_PX = 520  # half of the page
WHOLE_PX = 1_090  # the whole page
MIDDLE_PX = 620  # the whole page on a tablet, from 700 px
NARROW_PX = 332  # a phone of 390 px


def card(title: str, lead: str, *children: Markup, is_whole: bool = False) -> Markup:
    """Return a section of the page."""
    opening = [element("h2", text(title)), element("p", text(lead), class_="lead")]
    return element("section", *opening, *children, class_="whole" if is_whole else None)


def tile(title: str, value: str, note: str, *more: Markup) -> Markup:
    """Return one large figure."""
    return element(
        "li",
        element("span", text(title), class_="what"),
        element("b", text(value)),
        element("span", text(note)),
        *more,
        class_="tile",
    )


def nothing(words: str) -> Markup:
    """Return the text of an empty card."""
    return element("p", text(words), class_="none")


def fitting(draw: Callable[[float, bool], Markup], wide_px: float) -> Markup:
    """Draw a chart for laptop, tablet and phone; the style sheet shows the one that fits."""
    pictures = [element("div", draw(wide_px, False), class_="wide")]
    if wide_px > MIDDLE_PX:
        pictures.append(element("div", draw(MIDDLE_PX, False), class_="middle"))
    pictures.append(element("div", draw(NARROW_PX, True), class_="narrow"))
    return element("figure", *pictures, class_="large" if wide_px > MIDDLE_PX else None)


def ranked_bars(
    rows: Sequence[Ranked], shown: Callable[[float], str], class_: str = "c1", most: float | None = None
) -> Markup:
    """Return names with bars whose length is proportional to the value; `most` fills the width."""
    most = most or max((row.value for row in rows), default=0) or 1
    return element("ul", *[_bar(row, row.value / most, shown, class_) for row in rows], class_="bars")


def _bar(row: Ranked, part: float, shown: Callable[[float], str], class_: str) -> Markup:
    label = [text(row.name)]
    if row.note:
        label += [Markup(" "), element("span", text(row.note), class_="note")]
    return element(
        "li",
        element(
            "div",
            element("span", *label, class_="who"),
            element("span", text(shown(row.value)), class_="value"),
            class_="row",
        ),
        element(
            "div", element("span", class_=f"fill {class_}", style=f"width:{max(0.4, 100 * part):.1f}%"), class_="track"
        ),
    )


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    minor: frozenset[int] = frozenset(),
    *,
    wide: frozenset[int] = frozenset(),
    is_text: bool = False,
) -> Markup:
    """Return a table with a text column and figure columns; a cell is text, or Markup that is inserted unchanged.

    Phones do not show the columns in `minor`, nor tablets those in `wide`. With `is_text` all columns are text.
    """

    def class_of(at: int) -> str | None:
        chosen = (("n", at and not is_text), ("minor", at in minor), ("large", at in wide))
        return " ".join(name for name, is_set in chosen if is_set) or None

    def cells(name: str, values: Sequence[str]) -> Markup:
        return join(
            element(name, value if isinstance(value, Markup) else text(value), class_=class_of(at))
            for at, value in enumerate(values)
        )

    head = element("thead", element("tr", cells("th", heads)))
    body = element("tbody", *[element("tr", cells("td", row)) for row in rows])
    return element("table", head, body)
