"""A relay for each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.relay.locks.desk import Desk, open_desk
from tests.relay.locks.transports import LockRelay, run_lock_relay


@pytest.fixture(params=["http", "stream"])
async def relay(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LockRelay]:
    """A relay on a fake clock whose nodes use HTTP, then the same on streams."""
    async with run_lock_relay(tmp_path / "relay", request.param) as opened:
        yield opened


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """An engine on a fake clock."""
    async with open_desk(tmp_path / "core") as opened:
        yield opened


@pytest.fixture(autouse=True)
def on_each_store(each_store: str) -> None:
    """Run every test of this folder on SQLite and on PostgreSQL."""
