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
    renderer = structlog.dev.ConsoleRenderer() if is_text else structlog.processors.JSONRenderer()
    level = logging.getLevelNamesMapping()[str(values["log.level"].value).upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if not is_text else structlog.dev.set_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
