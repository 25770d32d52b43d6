from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import SqliteStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "relay.db", clock)
    yield opened
    opened.close()
