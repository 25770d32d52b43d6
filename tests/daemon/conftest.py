from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.house import House, open_house
from tests.daemon.hosts import Host, host_at


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A running relay with an open main mesh."""
    async with open_house(tmp_path) as running:
        yield running


@pytest.fixture
async def alice(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "alice") as host:
        yield host


@pytest.fixture
async def bob(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "bob") as host:
        yield host
