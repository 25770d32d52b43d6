"""What every store does for locks: part of the contract of RelayStore."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import LockRow, RequestRecord, ended, reopen
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.model.lock_scope import Asked, covers, overlaps
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.lock_operations import LockEntry, LockRun
from tests.relay.store.contract import ODD_D, write

ROW = LockRow("r", "ed25519:a", 3, 5_000, 77)


class LocksContract:
    """Behaviour of every store."""

    async def test_lease_is_found_as_it_was_saved_extended_and_ended(self, store: RelayStore) -> None:
        assert await write(store, lambda unit: unit.find_leases("main", "r")) == []
        longer = replace(ROW, lease_ms=9_000, deadline_boot_ns=99)
        for change, expected in (
            (lambda unit: unit.add_lease("main", ROW), ROW),
            (lambda unit: unit.extend_lease("main", longer), longer),
            (lambda unit: unit.end_lease("main", longer), ended(longer)),
        ):
            await write(store, change)
            assert await write(store, lambda unit: unit.find_leases("main", "r")) == [expected]
            assert await write(store, lambda unit: unit.find_leases("main", "r", "ed25519:a")) == [expected]
        assert await write(store, lambda unit: unit.find_leases("main", "r", "ed25519:b")) == []
        assert await write(store, lambda unit: unit.find_leases("other", "r")) == []

    async def test_new_lease_takes_the_place_of_the_last_one(self, store: RelayStore) -> None:
        following = LockRow("r", "ed25519:b", 4, 1_000, 88, session="s", is_tree=True)
        await write(store, lambda unit: unit.add_lease("main", ROW))
        await write(store, lambda unit: unit.end_lease("main", ROW))
        await write(store, lambda unit: unit.add_lease("main", following))
        assert await write(store, lambda unit: unit.find_leases("main", "r")) == [following]

    async def test_shared_leases_of_a_name_end_one_by_one_and_the_last_stays(self, store: RelayStore) -> None:
        rows = [LockRow("r", "ed25519:a", number, 5, 77, session=f"{number}", is_shared=True) for number in (1, 2, 3)]
        for row in rows:
            await write(store, lambda unit, row=row: unit.add_lease("main", row))  # type: ignore[misc]
        for row, left in zip(rows, (rows[1:], rows[2:], [ended(rows[2])]), strict=True):
            await write(store, lambda unit, row=row: unit.end_lease("main", row))  # type: ignore[misc]
            assert await write(store, lambda unit: unit.find_leases("main", "r")) == left

    async def test_odd_names_are_different_locks(self, store: RelayStore) -> None:
        rows = [LockRow(name, "a", number + 1, 1_000, 0) for number, name in enumerate(name for name in ODD_D if name)]

        def save(unit: Unit) -> None:
            for row in rows:
                unit.add_lease("main", row)

        await write(store, save)
        for row in rows:
            found = await write(store, lambda unit, row=row: unit.find_leases("main", row.resource))  # type: ignore[misc]
            assert found == [row]

    async def test_overlaps_are_the_unreleased_leases_of_the_name_the_trees_above_and_for_a_tree_all_below(
        self, store: RelayStore
    ) -> None:
        names = ["a", "a/b", "a/b/c", "a/b/c/d", "a/bc", "a/b0", "b", "a/b.c", "a/b//", "é/x"]
        rows = [
            LockRow(name, "n", number + 1, 9, 77, is_released=is_released, session=session, is_tree=is_tree)
            for number, (name, (session, is_tree, is_released)) in enumerate(
                product(names, [("plain", False, False), ("tree", True, False), ("over", False, True)])
            )
        ]

        def save(unit: Unit) -> None:
            for row in sorted(rows, key=lambda row: row.is_released):  # a grant would replace a released row
                unit.add_lease("main", replace(row, is_released=False))
                if row.is_released:
                    unit.end_lease("main", row)

        await write(store, save)
        for name, is_tree in product([*names, "a/b/c/d/e", "é"], [False, True]):
            asked = Asked(name, "x", is_tree=is_tree)
            found = await write(store, lambda unit, asked=asked: unit.find_overlaps("main", asked, 0))  # type: ignore[misc]
            expected = [row for row in rows if not row.is_released and overlaps(asked, row)]
            assert sorted(found, key=lambda row: row.token) == expected, asked
            own = Asked(name, "n", "tree", is_tree)
            mine = [row for row in expected if row.session == "tree"]
            held = await write(store, lambda unit, own=own: unit.find_own_overlap("main", own, 0))  # type: ignore[misc]
            assert (held in mine) if mine else held is None
            assert await write(store, lambda unit, own=own: unit.find_own_overlap("main", own, 77)) is None  # type: ignore[misc]
            covering = await write(store, lambda unit, name=name: unit.find_covering("main", name))  # type: ignore[misc]
            assert {row.token for row in covering} == {
                row.token for row in rows if covers(row, name) and (row.resource == name or not row.is_released)
            }

    async def test_shared_claim_does_not_find_the_active_shared_leases_of_others(self, store: RelayStore) -> None:
        rows = [
            LockRow("a/b", "n", 1, 9, 77, session="active", is_shared=True),
            LockRow("a/b", "n", 2, 9, 7, session="expired", is_shared=True),
            LockRow("a/b", "n", 3, 9, 77, session="own", is_shared=True),
            LockRow("a/b", "n", 4, 9, 77, session="exclusive"),
        ]
        for row in rows:
            await write(store, lambda unit, row=row: unit.add_lease("main", row))  # type: ignore[misc]
        for asked in (Asked("a/b", "n", "own", False, True), Asked("a", "n", "own", True, True)):
            found = await write(store, lambda unit, asked=asked: unit.find_overlaps("main", asked, 50))  # type: ignore[misc]
            assert sorted(row.token for row in found) == [2, 3, 4]
        exclusive = await write(store, lambda unit: unit.find_overlaps("main", Asked("a/b", "n", "own"), 50))
        assert sorted(row.token for row in exclusive) == [1, 2, 3, 4]

    async def test_unit_that_fails_changes_no_lock_and_takes_back_what_it_did_in_memory(
        self, store: RelayStore
    ) -> None:
        await write(store, lambda unit: unit.add_lease("main", ROW))
        undone: list[str] = []

        def fail(unit: Unit) -> None:
            unit.on_rollback(lambda: undone.append("first"))
            unit.on_rollback(lambda: undone.append("second"))
            unit.end_lease("main", ROW)
            unit.save_lock_request("main", "r", "b", "", RequestRecord("q", 1_000, 9, 0, 0))
            unit.save_fence_write("main", "r", b"x", 9)
            raise error("held")

        with pytest.raises(PosthouseError):
            await write(store, fail)
        assert undone[:2] == ["second", "first"]
        assert await write(store, lambda unit: unit.find_leases("main", "r")) == [ROW]
        assert await write(store, lambda unit: unit.find_lock_request("main", "r", "b", "", "q")) is None
        assert await write(store, lambda unit: unit.find_fence_write("main", "r", b"x")) is None
        await write(store, lambda unit: unit.on_rollback(lambda: undone.append("kept")))
        assert "kept" not in undone

    async def test_locks_are_listed_by_mesh_and_name_in_pages(self, store: RelayStore) -> None:
        def save(unit: Unit) -> None:
            for mesh in ("b", "a", "c"):
                for name in ("2", "1"):
                    unit.add_lease(mesh, LockRow(name, "o", 1, 1_000, 0))

        await write(store, save)
        pages, after = [], ("", "", "", "")
        while page := await store.locks(frozenset({"a", "c"}), after, 3):
            pages.append([(entry.mesh, entry.row.resource) for entry in page])
            after = (*pages[-1][-1], "o", "")
        assert pages == [[("a", "1"), ("a", "2"), ("c", "1")], [("c", "2")]]
        assert len(await store.locks(None, ("", "", "", ""), 100)) == 6
        assert await store.locks(frozenset(), ("", "", "", ""), 100) == []

    async def test_request_is_found_under_its_whole_key(self, store: RelayStore, clock: FakeClock) -> None:
        record = RequestRecord("q", 5_000, 3, 111, clock.wall_ns(), "[]")
        await write(store, lambda unit: unit.save_lock_request("main", "r", "a", "s", record))
        for key, expected in (
            (("main", "r", "a", "s", "q"), record),
            (("lab", "r", "a", "s", "q"), None),
            (("main", "s", "a", "s", "q"), None),
            (("main", "r", "b", "s", "q"), None),
            (("main", "r", "a", "", "q"), None),
            (("main", "r", "a", "s", "p"), None),
        ):
            assert await write(store, lambda unit, key=key: unit.find_lock_request(*key)) == expected  # type: ignore[misc]

    async def test_requests_of_the_day_before_are_forgotten_little_by_little(
        self, store: RelayStore, clock: FakeClock
    ) -> None:
        def save(unit: Unit, name: str) -> None:
            unit.save_lock_request("main", "r", "a", "", RequestRecord(name, 5_000, 3, 0, unit.now_ns))

        for number in range(6):
            await write(store, lambda unit, number=number: save(unit, f"old {number}"))  # type: ignore[misc]
        clock.advance(REQUEST_RECORD_S + 1)
        for number in range(64):  # a store may look for old ones this seldom
            await write(store, lambda unit, number=number: save(unit, f"new {number}"))  # type: ignore[misc]

        def left(unit: Unit) -> list[str]:
            names = [f"old {number}" for number in range(6)] + ["new 0", "new 63"]
            return [name for name in names if unit.find_lock_request("main", "r", "a", "", name) is not None]

        assert await write(store, left) == ["new 0", "new 63"]

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
                unit.add_lease("main", replace(row, is_released=False))
                if row.is_released:
                    unit.end_lease("main", row)
            return unit.begin_lock_run(run, 60_000, void_token)

        assert await write(store, live) == 1
        assert await write(store, lambda unit: unit.find_lock_run()) == run
        found = {entry.row.resource: entry for entry in await store.locks(None, ("", "", "", ""), 10)}
        for row in rows:
            assert found[row.resource] == LockEntry("main", reopen(row, 1_000, 60_000, void_token))

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
        token = await write(store, lambda unit: unit.next_token())
        assert 1_001 < token <= await write(store, lambda unit: unit.last_token())

    async def test_a_token_whose_reservation_was_rolled_back_is_above_the_stored_counter(
        self, store: RelayStore
    ) -> None:
        def fail(unit: Unit) -> None:
            unit.next_token()
            raise error("held")

        last = 0
        for _ in range(3):
            with pytest.raises(PosthouseError):
                await write(store, fail)
            token = await write(store, lambda unit: unit.next_token())
            assert last < token <= await write(store, lambda unit: unit.last_token())
            last = token

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
