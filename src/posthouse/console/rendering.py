"""HTML from templates: everything that agents wrote is text, never markup.

Every template escapes automatically. Before that, characters that a browser would obey instead of show (control
characters, and those that change the direction of text) are replaced, so that a name cannot pose as another one.
Times are shown relative to the time of rendering, with the exact time as a title.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from posthouse.http.response import HttpResponse
from posthouse.model.clock import Clock, format_utc, parse_utc
from posthouse.model.limits import SECOND_NS

HTML = "text/html; charset=utf-8"
_KEPT = {0x09, 0x0A}  # tab and line feed are text
_CONTROL = [each for each in (*range(32), *range(127, 160)) if each not in _KEPT]
_DIRECTION = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_REPLACED = dict.fromkeys((*_CONTROL, *_DIRECTION), "\N{REPLACEMENT CHARACTER}")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def plain(value: object) -> object:
    """Return text without characters that a browser obeys; markup and other values stay as they are."""
    if value is None:
        return ""
    return value.translate(_REPLACED) if isinstance(value, str) and not isinstance(value, Markup) else value


def seconds(value: float | None) -> str:
    """Return a duration in its largest unit."""
    if value is None:
        return "–"
    for size, unit in _UNITS:
        if value >= size:
            return f"{int(value // size)} {unit}"
    return f"{value * 1_000:.0f} ms" if value else "0 s"


def size(value: float) -> str:
    """Return a number of bytes in a fitting unit."""
    for unit_size, unit in _SIZES:
        if value >= unit_size:
            return f"{value / unit_size:.1f} {unit}"
    return f"{value:.0f} B"


def number(value: float) -> str:
    """Return a figure with separators, or with one digit after the point if it is small."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def short(node: str | None) -> str:
    """Return the first digits of a node id."""
    return "" if node is None else node.removeprefix("ed25519:").removeprefix("pinch:")[:8]


def nanoseconds(value: str | int | None) -> int | None:
    """Return a time of an API, text or number, in nanoseconds."""
    return parse_utc(value) if isinstance(value, str) else value


def query(values: Mapping[str, object], **changed: object) -> str:
    """Return the query of an address: the values with some changed; empty ones are left out."""
    merged = {name: value for name, value in {**values, **changed}.items() if value not in (None, "", False)}
    return f"?{urlencode(merged)}" if merged else "?"


class Renderer:
    """Renders the templates of the console."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._environment = Environment(
            loader=PackageLoader("posthouse.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=plain,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "seconds": seconds, "size": size, "number": number, "short": short, "ago": self.ago, "left": self.left,
            "moment": format_utc,
        }  # fmt: skip
        self._environment.globals["query"] = query

    def page(self, template: str, status: int = 200, **values: Any) -> HttpResponse:
        """Return a template as a response."""
        return HttpResponse(status, self.text(template, **values).encode(errors="replace"), HTML)

    def text(self, template: str, **values: Any) -> str:
        """Return a template filled with values."""
        return self._environment.get_template(template).render(**values)

    def ago(self, at: str | int | None) -> Markup:
        """Return how long ago a time was, as an element with the exact time."""
        return self._time(at, 1)

    def left(self, at: str | int | None) -> Markup:
        """Return how far away a time is, as an element with the exact time."""
        return self._time(at, -1)

    def _time(self, at: str | int | None, sign: int) -> Markup:
        at_ns = nanoseconds(at)
        if at_ns is None:
            return Markup("–")
        exact = format_utc(at_ns)
        passed = seconds(max(0, int((self._clock.wall_ns() - at_ns) * sign / SECOND_NS)))
        return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, passed)
