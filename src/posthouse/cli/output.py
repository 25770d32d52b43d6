"""What a command prints, for people or for programs: the only module of posthouse that writes to a terminal.

Every command takes `output: Output` and gives each result twice, as a value and as text; `--json` selects the value.
Results go to stdout, notes and errors to stderr, so that a pipe carries results only. Control characters are escaped
in every format and never sent to the terminal. Text of other nodes goes through `one_line` or `indented`, so that its
line breaks cannot forge a line of the output. `main` decides exit codes, not this module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_OUTPUT_GROUP = Group("Output", sort_key=9)
_PIPE_WIDTH = 10_000  # columns when no terminal sets a width: a row stays on one line
_SWITCH = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=_OUTPUT_GROUP)
@dataclass(frozen=True)
class Output:
    """The format of what a command prints; part of the signature of every command."""

    json: Annotated[bool, _SWITCH, Parameter(help="Write JSON: one object, or one per line.")] = False
    debug: Annotated[bool, _SWITCH, Parameter(help="Show the traceback of an unexpected failure.")] = False

    def result(self, value: object, shown: RenderableType) -> None:
        """Write one result; commands that stream call it once per line."""
        if self.json:
            write_json(sys.stdout, value)
        else:
            show(sys.stdout, shown)

    def note(self, text: str) -> None:
        """Write a note to stderr for people; with --json write nothing."""
        if not self.json:
            show(sys.stderr, text)

    def asks(self, question: str) -> bool:
        """Ask the person at the terminal; True for yes, False for anything else, with --json or without a terminal."""
        if self.json or not sys.stdin.isatty():
            return False
        sys.stderr.write(f"{visible(question)} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def show(stream: TextIO, shown: RenderableType) -> None:
    """Write text or a table for people, in colour only if the terminal and NO_COLOR allow it."""
    if isinstance(shown, str):
        stream.write(visible(shown) + "\n")
    else:
        _print_safely(_console(stream), shown)
    stream.flush()


def _print_safely(console: Console, shown: RenderableType) -> None:
    from rich.segment import Segment, Segments

    lines = console.render_lines(shown, pad=False, new_lines=True)
    safe = [part if part.control else Segment(visible(part.text), part.style) for line in lines for part in line]
    console.print(Segments(safe), end="", soft_wrap=True)


def write_json(stream: TextIO, value: object) -> None:
    """Write one JSON object on one line."""
    import msgspec

    text = msgspec.json.encode(value, enc_hook=_encode).decode()
    # JSON itself escapes the first 32 control characters only; the others stand in strings, so JSON may escape them
    stream.write((text if text.isprintable() else "".join(map(_json_character, text))) + "\n")
    stream.flush()


def _json_character(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def visible(text: str) -> str:
    """Return `text` with control characters escaped, so that text from other nodes cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return `text` with control characters and line breaks escaped: a value of another node inside a line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def indented(text: str, width: int) -> str:
    """Return `text` of several lines with all but the first moved right, so that none looks like a line of its own."""
    return visible(text).replace("\n", "\n" + " " * width)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def _encode(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


#: The default of every command's `output`.
PLAIN = Output()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType:
    """Return rows laid out in columns, without borders."""
    from rich.table import Table
    from rich.text import Text

    laid = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        laid.add_column(name, overflow="fold")
    for row in rows:
        laid.add_row(*(cell if isinstance(cell, Text) else Text(one_line(str(cell))) for cell in row))
    return laid


def format_moment(at_ns: int | None) -> str:
    """Return a time as UTC text, or `-` if there is none."""
    from posthouse.model.clock import format_utc

    return "-" if at_ns is None else format_utc(at_ns)


def short_node(node: str) -> str:
    """Return the first eight digits of a node id, as tables show it."""
    return node.removeprefix("ed25519:").removeprefix("pinch:")[:8]


def shown_body(body: str | None) -> str:
    """Return the text of a message, or a placeholder if this node cannot open it."""
    return "(undecryptable)" if body is None else body
