from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.rate import Rate
from posthouse.relay.engine import EngineSettings, RelayEngine
from tests.relay.authors import Author

RELAY = Author(99).node
ADMIN = Author(98)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def core(tmp_path: Path, clock: FakeClock, each_store: str) -> AsyncIterator[RelayEngine]:
    settings = EngineSettings(
        tmp_path / "relay", RELAY, admins=(ADMIN.node,), event_rate=Rate(100, 500), ephemeral_rate=Rate(10, 20)
    )
    started = await RelayEngine.start(settings, clock)
    yield started
    await started.close()
