"""What holds for every test: one test's log configuration is not the next one's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def unconfigured_log() -> Iterator[None]:
    """Undo what a command of this test said about the log."""
    yield
    structlog.reset_defaults()
