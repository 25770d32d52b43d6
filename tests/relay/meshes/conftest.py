from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.core import Core, CoreSettings
from tests.relay.authors import Author

RELAY = Author(99).node
ADMIN = Author(98)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def settings(tmp_path: Path) -> CoreSettings:
    return CoreSettings(tmp_path / "relay", RELAY, admins=(ADMIN.node,))


@pytest.fixture
async def core(settings: CoreSettings, clock: FakeClock) -> AsyncIterator[Core]:
    started = await Core.start(settings, clock)
    yield started
    await started.close()
