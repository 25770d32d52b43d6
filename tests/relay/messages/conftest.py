"""A relay whose store is checked after each test: whatever was done to it, nothing may be found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running relay with its default limits."""
    async with checked(tmp_path / "relay") as started:
        yield started


@pytest.fixture
def alice() -> Author:
    return Author()


@pytest.fixture
def bob() -> Author:
    return Author()


@pytest.fixture
def carol() -> Author:
    return Author()


@pytest.fixture(autouse=True)
def on_each_store(each_store: str) -> None:
    """Run every test of this folder on SQLite and on PostgreSQL."""
