"""Logging of a library inside somebody's program: to standard error, never to its standard output.

structlog as it comes prints to standard output, where a program's own answers go. So entries are handed to the
logger factory that the program has configured, and to standard error while it has configured none. How entries look
follows the program's structlog configuration; nothing is configured here.
"""

from __future__ import annotations

import sys
from typing import Any

import structlog

#: what structlog uses until somebody says otherwise; unknown when the program was faster
_UNCONFIGURED = None if structlog.is_configured() else structlog.get_config()["logger_factory"]


class _StandardError:
    """Writes entries to whatever standard error is at that moment."""

    def msg(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


class _Destination:
    """Where the entries of one module go, decided entry by entry."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        factory = structlog.get_config()["logger_factory"]
        is_unconfigured = factory is _UNCONFIGURED or not structlog.is_configured()
        return getattr(_StandardError() if is_unconfigured else factory(self._name), method)


def get_log(name: str) -> Any:
    """Return the log of a module."""
    return structlog.wrap_logger(_Destination(name), module=name)
