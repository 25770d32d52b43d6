"""`posthouse man`: the manual pages, made from the command line itself.

There is one page for `posthouse` and one for each command, which also has the verbs of a noun. Hidden commands, which
are former names, have none. The text is that of --help, so the two cannot differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App, Argument, Parameter

from posthouse.cli.commands import build
from posthouse.cli.output import PLAIN, Output
from posthouse.cli.overview import GROUPS
from posthouse.version import __version__

_CODE = re.compile(r"`([^`]+)`")
_SEE_ALSO = ".SH SEE ALSO\n.BR posthouse (1)"


def man(
    directory: Annotated[Path, Parameter(help="Directory of manual pages; the pages go to its subdirectory man1.")],
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Write the manual pages of posthouse and its commands.

    For example:

        posthouse man ~/.local/share/man
        sudo posthouse man /usr/local/share/man
    """
    section = directory / "man1"
    section.mkdir(parents=True, exist_ok=True)
    pages = render_pages()
    for name, text in pages.items():
        (section / name).write_text(text)
    output.result({"directory": section, "pages": list(pages)}, f"wrote {len(pages)} pages to {section}")


def render_pages() -> dict[str, str]:
    """Return every manual page by its file name."""
    app = build()
    commands = dict(walk(app, ("posthouse",)))
    pages = {"posthouse.1": _overview(app, commands)}
    for names in GROUPS.values():
        for name in names:
            path = ("posthouse", name)
            if path in commands:
                pages[f"posthouse-{name}.1"] = _page(path, commands[path])
    return pages


def walk(app: App, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield every command and noun below `app` with its path, in alphabetical order, without hidden ones."""
    for name, child in sorted(app.resolved_commands().items()):
        if not name.startswith("-") and child.show:
            yield (*path, name), child
            yield from walk(child, (*path, name))


def _overview(app: App, commands: dict[tuple[str, ...], App]) -> str:
    lines = [_heading(("posthouse",)), ".SH NAME", f"posthouse \\- {_inline(app.help)}"]
    lines += [".SH SYNOPSIS", ".B posthouse\n.I command\n.RI [ arguments ]"]
    for title, names in GROUPS.items():
        lines.append(f".SH {title.upper()}")
        for name in names:
            summary = inspect.cleandoc(commands[("posthouse", name)].help).splitlines()[0]
            lines += [".TP", f".BR posthouse\\-{_plain(name)} (1)", _inline(summary)]
    lines += [".SH FILES", ".TP", ".I ~/.posthouse", "Keys, settings and data; POSTHOUSE_HOME names another directory."]
    return "\n".join(lines) + "\n"


def _page(path: tuple[str, ...], command: App) -> str:
    summary, _, rest = inspect.cleandoc(command.help).partition("\n")
    lines = [_heading(path), ".SH NAME", f"{_plain('-'.join(path))} \\- {_inline(summary)}"]
    lines += [".SH DESCRIPTION", *_body(rest or summary)]
    if command.default_command is not None:
        lines += [".SH OPTIONS", *_options(command)]
    for verb, child in walk(command, path):
        lines += [f".SH {_plain(' '.join(verb)).upper()}", *_body(inspect.cleandoc(child.help))]
        if child.default_command is not None:
            lines += _options(child)
    return "\n".join([*lines, _SEE_ALSO]) + "\n"


def _heading(path: tuple[str, ...]) -> str:
    title = _plain("-".join(path)).upper()
    return f'.TH {title} 1 "" "posthouse {__version__}" "posthouse manual"'


def _body(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; indented ones are examples, and stay as they are."""
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        if paragraph.startswith("    "):
            yield ".RS\n.nf"
            yield from (_protected(_plain(line.removeprefix("    "))) for line in paragraph.splitlines())
            yield ".fi\n.RE"
        else:
            yield ".PP\n" + _inline(" ".join(paragraph.split()))


def _options(command: App) -> Iterator[str]:
    for argument in command.assemble_argument_collection():
        if argument.show:
            yield f".TP\n.B {_plain(', '.join(argument.names))}"
            yield _inline(meaning(argument)) or "\\&"


def meaning(argument: Argument) -> str:
    """Return the help of an argument with its choices."""
    choices = argument.get_choices()
    text = argument.parameter.help or ""
    return f"{text} One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else text


def _inline(text: str) -> str:
    return _protected(_CODE.sub(r"\\fB\1\\fR", _plain(text.strip())))


def _plain(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def _protected(line: str) -> str:
    """Return a line escaped so that roff does not read it as a request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
