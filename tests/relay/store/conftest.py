"""The store that the contract suites check: each suite runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.store.postgresql.pg_store import PgStore
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.store.sqlite.store import SqliteStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[RelayStore]:
    if request.param == "sqlite":
        opened: RelayStore = SqliteStore(tmp_path / "relay.db", clock)
    else:
        opened = PgStore(request.getfixturevalue("database"), clock)
    yield opened
    opened.close()
