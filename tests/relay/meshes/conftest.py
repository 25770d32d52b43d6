from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.engine import EngineSettings, RelayEngine
from tests.relay.authors import Author

RELAY = Author(99).node
ADMIN = Author(98)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    return EngineSettings(tmp_path / "relay", RELAY, admins=(ADMIN.node,))


@pytest.fixture
async def core(settings: EngineSettings, clock: FakeClock) -> AsyncIterator[RelayEngine]:
    started = await RelayEngine.start(settings, clock)
    yield started
    await started.close()


@pytest.fixture(autouse=True)
def on_each_store(each_store: str) -> None:
    """Run every test of this folder on SQLite and on PostgreSQL."""
