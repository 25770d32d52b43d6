"""Logging of a library inside somebody's program: to standard error, never to its standard output.

How entries look follows the program's structlog configuration.
"""

from __future__ import annotations

import sys
from typing import Any

import structlog


class _StandardError:
    """Writes entries to whatever standard error is at that moment."""

    def msg(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    debug = info = warning = warn = error = critical = exception = fatal = log = msg


def get_log(name: str) -> Any:
    """Return the log of a module."""
    return structlog.wrap_logger(_StandardError(), module=name)
