"""Markup with one rule: text becomes markup only here, escaped.

Names, subjects and reasons come from agents and may hold anything; whoever builds an element hands in plain text and
gets Markup back, and only Markup is put into a page as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NewType

Markup = NewType("Markup", str)
_EMPTY = {"path", "rect", "line", "circle", "meta"}
_CONTROL = dict.fromkeys((*range(32), 127, *range(128, 160), 8206, 8207, *range(8234, 8239), *range(8294, 8298)), " ")


def text(value: object) -> Markup:
    """Return plain text as markup; characters that control a terminal or turn the direction of text become spaces."""
    return Markup(escape(str(value).translate(_CONTROL), quote=True))


def element(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """Return an element; `class_` stands for class, `_` in names for a hyphen, None leaves an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{text(_number(value))}"')
    opened = " ".join(parts)
    if not children and name in _EMPTY:
        return Markup(f"<{opened}/>")
    return Markup(f"<{opened}>{''.join(children)}</{name}>")


def join(parts: Iterable[Markup]) -> Markup:
    """Return markup one after the other."""
    return Markup("".join(parts))


def _number(value: object) -> object:
    """Return coordinates with as many digits as can be seen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
