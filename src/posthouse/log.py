"""Logging of a library inside another program: to standard error, never to its standard output.

structlog's default prints to standard output, which is reserved for the program's own output. So entries go to the
logger factory that the program has configured, and to standard error while it has configured none. The program's
structlog configuration decides the format; this module configures nothing. On standard error entries have no colors
and no raw control characters, because they may quote other nodes. An entry that cannot be written is dropped: a full
disk or a closed pipe must not fail the work that logs, such as a commit.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

import structlog

#: structlog's default factory; None if the program configured structlog before this import
_UNCONFIGURED = None if structlog.is_configured() else structlog.get_config()["logger_factory"]


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class _StandardError:
    """Writes entries to the current standard error."""

    def msg(self, text: str) -> None:
        sys.stderr.write(_printable(_COLOUR.sub("", text)) + "\n")

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class UnfailingLogger:
    """Hands entries to a logger and drops those that it fails to write."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, method: str) -> Any:
        write = getattr(self._logger, method)

        def write_or_drop(*args: Any, **fields: Any) -> None:
            with suppress(Exception):
                write(*args, **fields)

        return write_or_drop


class _Destination:
    """The logger of one module; looked up per entry, because the program may configure structlog at any time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        factory = structlog.get_config()["logger_factory"]
        is_unconfigured = factory is _UNCONFIGURED or not structlog.is_configured()
        return getattr(UnfailingLogger(_StandardError() if is_unconfigured else factory(self._name)), method)


def get_log(name: str) -> Any:
    """Return the logger of a module."""
    return structlog.wrap_logger(_Destination(name), module=name)
