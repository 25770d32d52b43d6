"""Tables and text in Markdown, the same way on every generated page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HEAD = "<!-- Written by `make docs` from the registries in src; do not edit. -->"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells may hold Markdown."""
    lines = [_row(columns), _row(["---"] * len(columns)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    """Return `text` as inline code, or nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
