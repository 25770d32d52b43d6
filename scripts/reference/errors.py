"""The page of error codes, from posthouse.model.codes."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit
from posthouse.model.errors import AREAS
from scripts.reference.markdown import code, table

_INTRO = """\
An error has a code that never changes its meaning. Over HTTP it is an RFC 9457 problem with `code` and `hint`; on the
command line it is `error: text` and `hint: ...`, with `--json` the same problem object on stderr. Kinds: `refused`,
the caller may act on it; `transient`, nothing was written and the same call may succeed later; `fatal`, the connection
or the process ends.
"""

_EXITS = {
    Exit.OK: "done",
    Exit.REFUSED: "refused: the input, a rule or a right says no",
    Exit.USAGE: "the command line or a setting is wrong",
    Exit.UNREACHABLE: "the other side cannot be reached or is busy; try again",
    Exit.IDENTITY: "a key is missing, wrong or not private",
    Exit.BROKEN: "the installation or a store is broken, or posthouse has a defect",
}


def render() -> str:
    """Return the body of the page."""
    exits = table(("exit code", "meaning"), [(int(number), text) for number, text in _EXITS.items()])
    extra = "130 after Ctrl-C, 141 when the reader of the output went away."
    areas = [f"## {name}\n\n{_area(specs)}" for name, specs in AREAS.items() if specs]
    return "\n".join([_INTRO, "## Exit codes\n", exits, extra + "\n", *areas])


def _area(specs: tuple[ErrorSpec, ...]) -> str:
    rows = [(code(spec.code), spec.severity.value, spec.status, int(spec.exit), spec.text, spec.hint) for spec in specs]
    return table(("code", "kind", "HTTP", "exit", "text", "hint"), rows)
