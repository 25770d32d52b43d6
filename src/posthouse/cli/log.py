"""The log of a long-running command: to stderr, as text on a terminal and as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import structlog

from posthouse.model.settings import Resolved


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
