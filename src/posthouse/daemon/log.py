"""The log of a daemon: JSON lines in daemon.log, begun anew when it is large, a few old ones kept.

Others may read it, so it holds no secret: tracebacks name places, never values, and what people write to each other
is not logged at all.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO

import structlog

from posthouse.files import open_nofollow
from posthouse.model.limits import MIB

MAX_BYTES = 10 * MIB
KEPT = 5
_READABLE = 0o644


class RotatingFile:
    """A text file that is moved aside when it has become large."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._file = self._open()

    def write(self, text: str) -> int:
        """Write a line; move the file aside first if it would become too large."""
        if self._file.tell() + len(text) > self._max_bytes and self._file.tell():
            self._rotate()
        return self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> IO[str]:
        fd = open_nofollow(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _READABLE)
        os.fchmod(fd, _READABLE)
        return os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace")

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.rename(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.rename(self._path.with_name(f"{self._path.name}.1"))
        self._file = self._open()


def configure_log(path: Path, level: str = "info") -> RotatingFile:
    """Send the log of this process to a file."""
    file = RotatingFile(path)
    places = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(places),
            structlog.processors.JSONRenderer(default=repr),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    return file
