"""The Markdown of the project: which pages there are, their blocks of code and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: A comment before a block tells the test how to type it; a closing line of at least as many backticks ends a block.
_FENCE = re.compile(
    r"^(?:<!-- (?P<typing>[^\n]*?) -->\n+)?"
    r"(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks)`*\s*$",
    re.M | re.S,
)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: str
    line: int
    language: str
    body: str
    #: hidden words about how to type it; see session.py
    typing: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return every Markdown file that is part of the project, relative to its root."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found += (ROOT / "clients").glob("*/*.md")
    return sorted(str(path.relative_to(ROOT)) for path in found)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = text_of(page)
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("ticks")) + 1
        yield Block(page, line, match["info"].strip(), match["body"], match["typing"] or "")


def links_of(page: str) -> list[str]:
    """Return the targets of the links of a page, code left out."""
    prose = re.sub(r"`[^`\n]+`", "", _FENCE.sub("", text_of(page)))
    return [match["target"] for match in _LINK.finditer(prose)]


def anchors_of(page: str) -> set[str]:
    """Return the anchors that the headings of a page make, as code hosts write them."""
    headings = (match["text"].lower() for match in _HEADING.finditer(_FENCE.sub("", text_of(page))))
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}
