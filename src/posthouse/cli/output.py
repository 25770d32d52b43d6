"""The output of commands, for people or programs: the only module of posthouse that writes to a terminal.

Every command takes `output: Output` and gives each result twice, as a value and as text. `--output` selects the form:
text for people, the value as JSON, or the table in the text as CSV (the value where the text is not a table). Results
go to stdout, notes and errors to stderr, so that a pipe carries results only. Control characters are escaped in every
format and never sent to the terminal. Text of other nodes goes through `one_line` or `indented`, so that its line
breaks cannot forge a line of the output. `exit_codes` decides exit codes, not this module.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Group, Parameter

from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_OUTPUT_GROUP = Group("Output", sort_key=9)
_PIPE_WIDTH = 10_000  # columns when no terminal sets a width: a row stays on one line
_SWITCH = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=_OUTPUT_GROUP)
@dataclass(frozen=True)
class Output:
    """The output format of a command; part of the signature of every command."""

    form: Annotated[
        Literal["table", "json", "csv"],
        Parameter(name="--output", help="Form of the output: text, JSON (one object, or one per line), or CSV."),
    ] = "table"
    json: Annotated[bool, _SWITCH, Parameter(help="Short for --output json.")] = False
    debug: Annotated[bool, _SWITCH, Parameter(help="Show the traceback of an unexpected failure.")] = False

    def __post_init__(self) -> None:
        """Make both ways to ask for JSON set both fields; `--json` together with `--output csv` is an error."""
        if self.json and self.form == "csv":
            raise error("usage", text="--json and --output csv cannot be combined")
        is_json = self.json or self.form == "json"
        object.__setattr__(self, "json", is_json)
        object.__setattr__(self, "form", "json" if is_json else self.form)

    def result(self, value: object, shown: RenderableType) -> None:
        """Write one result; commands that stream call it once per line."""
        if self.form == "json":
            write_json(sys.stdout, value)
        elif self.form == "csv":
            self._csv.write(value, shown)
        else:
            show(sys.stdout, shown)

    @cached_property
    def _csv(self) -> CsvWriter:
        return CsvWriter(sys.stdout)

    def note(self, text: str) -> None:
        """Write a note to stderr for people; with --json write nothing."""
        if not self.json:
            show(sys.stderr, text)

    def failure(self, failure: PosthouseError) -> None:
        """Write a failure to stderr that does not end the command."""
        show_failure(failure, is_json=self.json)

    def asks(self, question: str) -> bool:
        """Ask the person at the terminal; True for yes, False for anything else, with --json or without a terminal."""
        if self.json or not sys.stdin.isatty():
            return False
        sys.stderr.write(f"{visible(question)} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def show(stream: TextIO, shown: RenderableType) -> None:
    """Write text or a table for people, in color only if the terminal and NO_COLOR allow it."""
    if isinstance(shown, str):
        stream.write(visible(shown) + "\n")
    else:
        stream.write(_rendered(_console(stream), shown))
    stream.flush()


def show_failure(failure: PosthouseError, *, is_json: bool) -> None:
    """Write a failure to stderr: its message and hint for people, or its fields as JSON."""
    if is_json:
        write_json(sys.stderr, failure.problem())
    else:
        show(sys.stderr, f"error: {indented(str(failure), 7)}\nhint: {indented(failure.hint, 6)}")


def _rendered(console: Console, shown: RenderableType) -> str:
    """Return a table as the text that the terminal gets; rich itself would end the process at a closed pipe."""
    from rich.segment import Segment, Segments

    lines = console.render_lines(shown, pad=False, new_lines=True)
    safe = [part if part.control else Segment(visible(part.text), part.style) for line in lines for part in line]
    with console.capture() as capture:
        console.print(Segments(safe), end="", soft_wrap=True)
    return capture.get()


def write_json(stream: TextIO, value: object) -> None:
    """Write one JSON object on one line."""
    import msgspec

    text = msgspec.json.encode(value, enc_hook=_encode).decode()
    # JSON itself escapes the first 32 control characters only; the others occur in strings, where JSON may escape them
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
    """Return `text` with control characters and line breaks escaped, for a value of another node inside a line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def indented(text: str, width: int) -> str:
    """Return `text` with all lines but the first indented, so that none of them looks like a separate entry."""
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


@dataclass(frozen=True)
class Rows:
    """A table: laid out in columns without borders for people, or as CSV."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __rich__(self) -> RenderableType:
        """Return the table that rich renders."""
        from rich.table import Table
        from rich.text import Text

        laid = Table(box=None, pad_edge=False, header_style="bold")
        for name in self.columns:
            laid.add_column(name, overflow="fold")
        for row in self.rows:
            laid.add_row(*(cell if isinstance(cell, Text) else Text(one_line(str(cell))) for cell in row))
        return laid


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Rows:
    """Return rows laid out in columns."""
    return Rows(columns, list(rows))


class CsvWriter:
    """Writes results as CSV: a header when the columns change, then the rows; a blank line separates two tables."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._writer = csv.writer(stream, lineterminator="\n")
        self._columns: list[str] | None = None

    def write(self, value: object, shown: RenderableType) -> None:
        """Write the table of a result, or its value as one row if the result is no table."""
        found = next((each for each in getattr(shown, "renderables", (shown,)) if isinstance(each, Rows)), None)
        laid = found or _record(value)
        if list(laid.columns) != self._columns:
            if self._columns is not None:
                self._stream.write("\n")
            self._columns = list(laid.columns)
            self._writer.writerow(self._columns)
        self._writer.writerows([visible(str(cell)) for cell in row] for row in laid.rows)
        self._stream.flush()


def _record(value: object) -> Rows:
    """Return the fields of a value as one row; a field that itself has fields is JSON."""
    import msgspec

    plain = msgspec.to_builtins(value, enc_hook=_encode)
    fields = plain if isinstance(plain, Mapping) else {"value": plain}
    return Rows(list(fields), [[_csv_cell(each) for each in fields.values()]])


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
