"""Logging of long-running commands: to stderr, or for the daemon to daemon.log, which rotates by size.

stderr gets text on a terminal and JSON lines elsewhere; daemon.log always gets JSON lines, each written whole. Text of
other nodes in an entry can neither drive the terminal nor forge an entry: control characters and line breaks are
escaped, and the lines of a traceback are indented. Tracebacks name source lines and never show local values, which may
hold tokens, keys and contents. Logging never raises: while the disk is full entries are dropped, and later ones are
written again. structlog is imported at the top, so import this module inside functions only.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

import structlog

from posthouse.cli.output import indented, one_line
from posthouse.files import open_nofollow
from posthouse.log import UnfailingLogger
from posthouse.model.limits import MIB
from posthouse.model.settings_sources import Resolved

MAX_BYTES = 10 * MIB
KEPT = 3  # rotated files, besides the current one
_LOG_MODE = 0o600
_INDENT = 4  # columns of a traceback


class LogFile(RotatingFileHandler):
    """The standard rotating handler, which follows no symbolic link and sets the file mode whatever the umask is."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=KEPT, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        fd = open_nofollow(Path(self.baseFilename), os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE)
        os.fchmod(fd, _LOG_MODE)
        return open(fd, "a", encoding="utf-8")  # noqa: PTH123 - the handler closes it

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in logging
        """Drop an entry that cannot be written; open the file again if a failed rotation has closed it."""
        if self.stream is not None and self.stream.closed:
            self.stream = None

    def close(self) -> None:
        """Close the file; entries that a full disk still keeps back are dropped."""
        with suppress(OSError, ValueError):
            super().close()


#: Returns True for an entry to drop.
DropEntry = Callable[[Mapping[str, Any]], bool]


def log_to_stderr(values: Mapping[str, Resolved], drop: DropEntry | None = None) -> None:
    """Write the log of this process to stderr, as log.level and log.format say, without the entries to drop."""
    style = values["log.format"].value
    is_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    render = _render_text() if is_text else _render_json()
    if drop is not None:
        render = [partial(_drop, drop), *render]
    _configure(values, render, structlog.WriteLoggerFactory(sys.stderr))


def _drop(drop: DropEntry, _logger: Any, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if drop(entry):
        raise structlog.DropEvent
    return entry


def log_to_file(file: LogFile, values: Mapping[str, Resolved]) -> None:
    """Write the log of this process to a file, as JSON lines."""
    logger = logging.Logger("posthouse")  # outside the tree of loggers: no other handler sees the entries
    logger.addHandler(file)
    _configure(values, _render_json(), lambda *_args: logger)


def _configure(
    values: Mapping[str, Resolved], render: list[structlog.typing.Processor], factory: Callable[..., Any]
) -> None:
    level = logging.getLevelNamesMapping()[str(values["log.level"].value).upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: UnfailingLogger(factory(*names)),
        cache_logger_on_first_use=False,
    )


def _render_text() -> list[structlog.typing.Processor]:
    return [_escape, structlog.dev.ConsoleRenderer(exception_formatter=_write_traceback)]


def _escape(_logger: Any, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape the texts of an entry; the renderer escapes values of other types itself."""
    return {name: one_line(value) if isinstance(value, str) else value for name, value in entry.items()}


def _write_traceback(file: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    file.write("\n" + " " * _INDENT + indented(plain.getvalue().strip("\n"), _INDENT))


def _render_json() -> list[structlog.typing.Processor]:
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
