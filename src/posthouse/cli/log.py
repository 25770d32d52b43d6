"""Logging of long-running commands: to stderr, or for the daemon to daemon.log, which rotates by size.

stderr gets text on a terminal and JSON lines elsewhere; daemon.log always gets JSON lines, each written whole.
Tracebacks name source lines, never local values: those may hold tokens, keys and contents. structlog is imported at
the top, so import this module inside functions only.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import structlog

from posthouse.files import open_nofollow
from posthouse.model.limits import MIB
from posthouse.model.settings_sources import Resolved


def configure_log(values: Mapping[str, Resolved]) -> None:
    """Set up the log as log.level and log.format say."""
    style = values["log.format"].value
    is_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[str(values["log.level"].value).upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_text() if is_text else _json()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


# tracebacks name places, never local values: those may hold tokens, keys and contents


def _text() -> list[structlog.typing.Processor]:
    return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]


def _json() -> list[structlog.typing.Processor]:
    places = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(places), structlog.processors.JSONRenderer()]


MAX_BYTES = 10 * MIB
KEPT = 3  # files besides the one that is written
_LOG_MODE = 0o644


class LogFile:
    """A text file that rotates itself; what structlog writes its lines to."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._guard = threading.Lock()
        self._file = self._open()
        self._size = path.stat().st_size

    def write(self, text: str) -> int:
        """Write a line, into a new file if this one is full."""
        with self._guard:
            size = len(text.encode())
            if self._size and self._size + size > self._max_bytes:
                self._rotate()
            self._size += size
            return self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system."""
        with self._guard:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(KEPT, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._file = self._open()
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> TextIO:
        fd = open_nofollow(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE)
        os.fchmod(fd, _LOG_MODE)
        return os.fdopen(fd, "a", encoding="utf-8", buffering=1)


def log_to(file: LogFile, values: Mapping[str, Resolved]) -> None:
    """Let the log of this process go to a file, as JSON lines."""
    places = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(places),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[str(values["log.level"].value).upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
