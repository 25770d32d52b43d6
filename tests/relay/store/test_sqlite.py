from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.store.protocol import Unit
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


@pytest.mark.parametrize("is_address", [False, True])
async def test_store_opened_again_asks_for_deletions_only_if_one_blocks_something(
    tmp_path: Path, is_address: bool
) -> None:
    def block(unit: Unit) -> None:
        if is_address:
            unit.delete_address(b"address", 7, is_pending=False)
        else:
            unit.block_ids([ALICE.event().id], ALICE.node, 7)

    first = SqliteStore(tmp_path / "relay.db", FakeClock())
    assert not await first.submit(lambda unit: unit.has_tombstones)
    await first.submit(block)
    assert await first.submit(lambda unit: unit.has_tombstones)
    first.close()
    second = SqliteStore(tmp_path / "relay.db", FakeClock())
    assert await second.submit(lambda unit: unit.has_tombstones)
    second.close()
