"""Fixtures: a running relay and an author."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.relay.both_stores import each_store  # noqa: F401 - a fixture
from tests.relay.edge import Author, Edge, running


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running relay with its default limits."""
    async with running(tmp_path / "relay") as started:
        yield started


@pytest.fixture
def author() -> Author:
    """A node that the relay does not know yet."""
    return Author()
