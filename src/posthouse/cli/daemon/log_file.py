"""daemon.log: JSON lines in a file that is rotated before it grows too large.

    daemon.log  daemon.log.1  ...  daemon.log.3

A line is written whole. Tracebacks name places, never local values: those may hold tokens, keys and contents.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import structlog

from posthouse.files import open_nofollow
from posthouse.model.limits import MIB
from posthouse.model.settings import Resolved

MAX_BYTES = 10 * MIB
KEPT = 3  # files besides the one that is written
_MODE = 0o644


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
        fd = open_nofollow(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE)
        os.fchmod(fd, _MODE)
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
