from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon import registrar
from tests.client.house import ADMIN, House, open_house
from tests.daemon.hosts import Host, host_at


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hosts publish their agents at once."""
    monkeypatch.setattr(registrar, "PUBLISH_EVERY_S", 0.05)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A running relay with an open main mesh."""
    async with open_house(tmp_path) as running:
        yield running


@pytest.fixture
async def alice(house: House) -> AsyncIterator[Host]:
    """A daemon whose member is called alice."""
    async with named(house, "alice") as host:
        yield host


@pytest.fixture
async def bob(house: House) -> AsyncIterator[Host]:
    """A daemon whose member is called bob."""
    async with named(house, "bob") as host:
        yield host


@asynccontextmanager
async def named(house: House, name: str, **settings: Any) -> AsyncIterator[Host]:
    """A daemon at a relay whose administrator has given its node a name; it has the agent that the tests are."""
    async with host_at(house, name, tcp="on", **settings) as host, house.client(ADMIN) as admin:
        await admin.meshes.add_member("main", host.node, name.rpartition("/")[2])
        await host.add_agent("mcp")  # as the SDK's client calls itself
        yield host


@pytest.fixture
async def usual(house: House) -> AsyncIterator[Host]:
    """A daemon in the usual directory of a home: daemon/main."""
    async with named(house, "daemon/main") as host:
        yield host
