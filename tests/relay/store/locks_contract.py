"""What every store does for locks: part of the contract of RelayStore."""

from __future__ import annotations

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import LockRow, RequestRecord, reopen
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.lock_operations import LockEntry, LockRun
from tests.relay.store.contract import ODD_D, write

ROW = LockRow("r", "ed25519:a", 3, 5_000, 77)


class LocksContract:
    """Behaviour of every store."""

    async def test_lock_is_found_as_it_was_saved(self, store: RelayStore) -> None:
        assert await write(store, lambda unit: unit.find_lock("main", "r")) is None
        for entry in (LockEntry("main", ROW, 4), LockEntry("main", LockRow("r", "b", 9, 1_000, 5, True), 6)):
            await write(store, lambda unit, entry=entry: unit.save_lock(entry))  # type: ignore[misc]
            assert await write(store, lambda unit: unit.find_lock("main", "r")) == entry
        assert await write(store, lambda unit: unit.find_lock("other", "r")) is None

    async def test_odd_names_are_different_locks(self, store: RelayStore) -> None:
        names = [name for name in ODD_D if name]
        entries = [LockEntry("main", LockRow(name, "a", number + 1, 1_000, 0)) for number, name in enumerate(names)]

        def save(unit: Unit) -> None:
            for entry in entries:
                unit.save_lock(entry)

        await write(store, save)
        for entry in entries:
            found = await write(store, lambda unit, entry=entry: unit.find_lock("main", entry.row.resource))  # type: ignore[misc]
            assert found == entry

    async def test_unit_that_fails_changes_no_lock(self, store: RelayStore) -> None:
        await write(store, lambda unit: unit.save_lock(LockEntry("main", ROW, 4)))

        def fail(unit: Unit) -> None:
            unit.save_lock(LockEntry("main", LockRow("r", "b", 9, 1_000, 5), 9))
            unit.save_lock_request("main", "r", "b", RequestRecord("q", 1_000, 9, 0, 0))
            unit.save_fence_write("main", "r", b"x", 9)
            raise error("held")

        with pytest.raises(PosthouseError):
            await write(store, fail)
        assert await write(store, lambda unit: unit.find_lock("main", "r")) == LockEntry("main", ROW, 4)
        assert await write(store, lambda unit: unit.find_lock_request("main", "r", "b", "q")) is None
        assert await write(store, lambda unit: unit.find_fence_write("main", "r", b"x")) is None

    async def test_locks_are_listed_by_mesh_and_name_in_pages(self, store: RelayStore) -> None:
        def save(unit: Unit) -> None:
            for mesh in ("b", "a", "c"):
                for name in ("2", "1"):
                    unit.save_lock(LockEntry(mesh, LockRow(name, "o", 1, 1_000, 0)))

        await write(store, save)
        pages, after = [], ("", "")
        while page := await store.locks(frozenset({"a", "c"}), after, 3):
            pages.append([(entry.mesh, entry.row.resource) for entry in page])
            after = pages[-1][-1]
        assert pages == [[("a", "1"), ("a", "2"), ("c", "1")], [("c", "2")]]
        assert len(await store.locks(None, ("", ""), 100)) == 6
        assert await store.locks(frozenset(), ("", ""), 100) == []

    async def test_request_is_found_under_its_whole_key(self, store: RelayStore, clock: FakeClock) -> None:
        record = RequestRecord("q", 5_000, 3, 111, clock.wall_ns())
        await write(store, lambda unit: unit.save_lock_request("main", "r", "a", record))
        for key, expected in (
            (("main", "r", "a", "q"), record),
            (("lab", "r", "a", "q"), None),
            (("main", "s", "a", "q"), None),
            (("main", "r", "b", "q"), None),
            (("main", "r", "a", "p"), None),
        ):
            assert await write(store, lambda unit, key=key: unit.find_lock_request(*key)) == expected  # type: ignore[misc]

    async def test_requests_of_the_day_before_are_forgotten_little_by_little(
        self, store: RelayStore, clock: FakeClock
    ) -> None:
        def save(unit: Unit, name: str) -> None:
            unit.save_lock_request("main", "r", "a", RequestRecord(name, 5_000, 3, 0, unit.now_ns))

        for number in range(6):
            await write(store, lambda unit, number=number: save(unit, f"old {number}"))  # type: ignore[misc]
        clock.advance(REQUEST_RECORD_S + 1)
        for number in range(3):
            await write(store, lambda unit, number=number: save(unit, f"new {number}"))  # type: ignore[misc]

        def left(unit: Unit) -> list[str]:
            names = [f"old {number}" for number in range(6)] + [f"new {number}" for number in range(3)]
            return [name for name in names if unit.find_lock_request("main", "r", "a", name) is not None]

        assert await write(store, left) == ["new 0", "new 1", "new 2"]

    @pytest.mark.parametrize("void_token", [0, 100])
    async def test_run_applies_the_rule_of_restarts_to_every_lock(self, store: RelayStore, void_token: int) -> None:
        run = LockRun("run", "epoch", "boot", 1_000)
        rows = [
            LockRow("held", "a", 3, 5, 70_000),
            LockRow("over", "a", 4, 5, 60_000),
            LockRow("long over", "a", 5, 5, 77),
            LockRow("free", "a", 6, 5, 77, True),
        ]

        def live(unit: Unit) -> int:
            for row in rows:
                unit.save_lock(LockEntry("main", row, 9))
            return unit.begin_lock_run(run, 60_000, void_token)

        assert await write(store, live) == 1
        assert await write(store, lambda unit: unit.find_lock_run()) == run
        found = {entry.row.resource: entry for entry in await store.locks(None, ("", ""), 10)}
        for row in rows:
            assert found[row.resource] == LockEntry("main", reopen(row, 1_000, 60_000, void_token), 0)

    async def test_tokens_of_all_locks_come_from_one_counter(self, store: RelayStore) -> None:
        assert await write(store, lambda unit: unit.last_token()) == 0
        assert await write(store, lambda unit: [unit.next_token(), unit.next_token()]) == [1, 2]
        for raised in (1_000, 7):
            await write(store, lambda unit, raised=raised: unit.raise_token_counter(raised))  # type: ignore[misc]
        assert await write(store, lambda unit: unit.next_token()) == 1_001

        def fail(unit: Unit) -> None:
            unit.next_token()
            raise error("held")

        with pytest.raises(PosthouseError):
            await write(store, fail)
        assert await write(store, lambda unit: unit.last_token()) == 1_001

    async def test_fence_write_is_remembered_per_coordinate_and_resource(self, store: RelayStore) -> None:
        await write(store, lambda unit: unit.save_fence_write("main", "r", b"x", 3))
        await write(store, lambda unit: unit.save_fence_write("main", "r", b"x", 5))
        assert await write(store, lambda unit: unit.find_fence_write("main", "r", b"x")) == 5
        assert await write(store, lambda unit: unit.find_fence_write("main", "s", b"x")) is None
        assert await write(store, lambda unit: unit.find_fence_write("main", "r", b"y")) is None

    async def test_boot_time_is_read_at_each_use(self, store: RelayStore, clock: FakeClock) -> None:
        def look(unit: Unit) -> int:
            before = unit.boot_ns
            clock.advance(2)
            return unit.boot_ns - before

        assert await write(store, look) == 2 * SECOND_NS
