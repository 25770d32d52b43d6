"""The shape of one entry in the error registry, and the exit codes of the command line.

If you add or change a code: 1. its area file in this folder, 2. `make docs` (docs/reference/errors.md is generated),
3. a test that provokes it. Codes are never renamed or reused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Severity(enum.Enum):
    """The reaction that an error allows its receiver: correct the call, retry it, or stop."""

    REFUSED = "refused"
    TRANSIENT = "transient"
    FATAL = "fatal"


class Exit(enum.IntEnum):
    """Exit codes of every posthouse command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    IDENTITY = 4
    BROKEN = 5


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One error code: its text and hint, and how HTTP and the command line report it."""

    code: str
    #: HTTP status of the problem+json response.
    status: int
    #: One sentence; `{field}` is replaced by a field of the case, `{field!r}` by the quoted field.
    text: str
    #: What the reader can do next; takes fields like the text.
    hint: str
    severity: Severity = Severity.REFUSED
    exit: Exit = Exit.REFUSED

    @property
    def title(self) -> str:
        return self.code.replace("_", " ").capitalize()

    def describe(self, fields: dict[str, Any]) -> str:
        """Return the text with its fields filled in; a missing field shows as a question mark."""
        return self.text.format_map(_Shown(fields))

    def advise(self, fields: dict[str, Any]) -> str:
        """Return the hint with its fields filled in."""
        return self.hint.format_map(_Shown(fields)) if "{" in self.hint else self.hint


class _Shown(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def transient(code: str, status: int, text: str, hint: str, exit: Exit = Exit.UNREACHABLE) -> ErrorSpec:  # noqa: A002
    return ErrorSpec(code, status, text, hint, Severity.TRANSIENT, exit)


def fatal(code: str, status: int, text: str, hint: str, exit: Exit = Exit.BROKEN) -> ErrorSpec:  # noqa: A002
    return ErrorSpec(code, status, text, hint, Severity.FATAL, exit)
