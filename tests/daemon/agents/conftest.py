"""Two hosts of one relay, for tests of mail between their agents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.house import House
from tests.daemon.hosts import Host, host_at


@pytest.fixture
async def laptop(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "l") as host:
        yield host


@pytest.fixture
async def build(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "b") as host:
        yield host
