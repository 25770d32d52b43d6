"""The page of commands, from the command line itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum

from cyclopts import App, Argument

from posthouse.cli.commands import build
from posthouse.cli.man import meaning, walk
from scripts.reference.markdown import code, table

_INTRO = """\
Every command takes `--output table|json|csv`, `--json` (short for `--output json`: one object, or one per line, on
stdout) and `--debug` (the traceback of an unexpected failure). Errors go to stderr; [errors.md](errors.md) has the exit
codes. `--` ends the options.
"""
_EVERYWHERE = {"--output", "--json", "--debug"}


def render() -> str:
    """Return the body of the page."""
    return "\n".join([_INTRO, *_sections(build(), ("posthouse",))])


def _sections(app: App, path: tuple[str, ...]) -> Iterator[str]:
    for command, child in walk(app, path):
        heading = "#" * len(command)
        text = f"{heading} {' '.join(command)}\n\n{inspect.cleandoc(child.help)}\n"
        yield f"{text}\n{_options(child)}" if child.default_command is not None else text


def _options(app: App) -> str:
    arguments = [a for a in app.assemble_argument_collection() if a.show and not _EVERYWHERE & set(a.names)]
    if not arguments:
        return "No options of its own.\n"
    return table(("argument", "default", "meaning"), [_row(argument) for argument in arguments])


def _row(argument: Argument) -> tuple[str, str, str]:
    default = argument.field_info.default
    if argument.required:
        shown = "required"
    elif default in (None, False, inspect.Parameter.empty):
        shown = ""
    else:
        shown = code(default.value if isinstance(default, Enum) else default)
    return " ".join(map(code, argument.names)), shown, meaning(argument)
