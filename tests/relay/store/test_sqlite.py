from __future__ import annotations

from pathlib import Path

from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import SqliteStore
from tests.relay.authors import ALICE
from tests.relay.store.contract import StoreContract, add


class TestStore(StoreContract):
    """Every store keeps the contract."""


async def test_store_opened_again_holds_what_was_answered(tmp_path: Path) -> None:
    event = ALICE.event()
    first = SqliteStore(tmp_path / "relay.db", FakeClock())
    await add(first, event)
    first.close()
    second = SqliteStore(tmp_path / "relay.db", FakeClock())
    assert await second.known([event.id]) == {event.id: 1}
    assert second.epoch == first.epoch
    second.close()


def test_database_is_private(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "relay.db", FakeClock())
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    store.close()
    assert set(modes.values()) == {0o600}
