"""Locks after restarts, crashes and restores: active leases get their full length again, tokens only grow."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.ops.maintenance import backup_relay, check_relay, restore_relay
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.store import SqliteUnit
from tests.relay.locks.desk import code_of, node, open_desk, token_of

ALICE, BOB = node(1), node(2)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize("pause_s", [1, 4])
async def test_restart_opens_every_active_lease_again_in_full(tmp_path: Path, clock: FakeClock, pause_s: float) -> None:
    async with open_desk(tmp_path, clock) as desk:
        held = [await desk.granted(ALICE, resource, lease_ms=5_000) for resource in ("a", "b")]
        released = await desk.granted(ALICE, "c")
        await desk.release(ALICE, released, "c")
    clock.advance(pause_s)
    async with open_desk(tmp_path, clock) as desk:
        for resource in ("a", "b"):
            status = await desk.inspect(resource)
            assert (status.held, status.owner, status.remaining_ms) == (True, ALICE, 5_000)
            assert code_of(await desk.acquire(BOB, resource)) == "held"
        assert not (await desk.inspect("c")).held
        assert token_of(await desk.renew(ALICE, held[0], "a")) == held[0]
        clock.advance(5)
        assert await desk.granted(BOB, "b") > released


@pytest.mark.parametrize("restarts", [1, 3])
async def test_lease_that_was_over_before_the_restart_stays_over(
    tmp_path: Path, clock: FakeClock, restarts: int
) -> None:
    async with open_desk(tmp_path, clock) as desk:
        over = await desk.granted(ALICE, "over", lease_ms=5_000)
        active = await desk.granted(ALICE, "active", lease_ms=600_000)
    clock.advance(5)
    for _ in range(restarts):
        async with open_desk(tmp_path, clock) as desk:
            assert not (await desk.inspect("over")).held
            assert code_of(await desk.renew(ALICE, over, "over")) == "lease_expired"
            assert token_of(await desk.renew(ALICE, active, "active", 600_000)) == active
    async with open_desk(tmp_path, clock) as desk:
        assert await desk.granted(BOB, "over") > active


async def test_another_boot_voids_the_boot_times_of_the_last(tmp_path: Path, clock: FakeClock) -> None:
    async with open_desk(tmp_path, clock) as desk:
        held = await desk.granted(ALICE)
    clock.reboot()  # boot time begins at zero, far below the deadlines in the table
    async with open_desk(tmp_path, clock) as desk:
        assert (await desk.inspect()).remaining_ms == 5_000
        clock.advance(5)
        assert await desk.granted(BOB) > held


async def test_lease_that_a_start_saw_over_stays_over_after_a_reboot(tmp_path: Path, clock: FakeClock) -> None:
    async with open_desk(tmp_path, clock) as desk:
        await desk.granted(ALICE, "over", lease_ms=5_000)
    clock.advance(5)
    async with open_desk(tmp_path, clock) as desk:
        await desk.granted(ALICE, "active", lease_ms=5_000)
    clock.reboot()
    async with open_desk(tmp_path, clock) as desk:
        assert not (await desk.inspect("over")).held
        assert (await desk.inspect("active")).held


async def test_tokens_grow_over_release_expiry_take_over_and_restart(tmp_path: Path, clock: FakeClock) -> None:
    tokens: list[int] = []
    for turn in range(3):
        async with open_desk(tmp_path, clock) as desk:
            clock.advance(10)
            tokens.append(await desk.granted(ALICE))
            await desk.release(ALICE, tokens[-1])
            tokens.append(await desk.granted(BOB))
            clock.advance(10)
            tokens.append(await desk.granted(ALICE if turn % 2 else BOB))
    assert tokens == sorted(set(tokens))


async def test_request_id_is_known_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    async with open_desk(tmp_path, clock) as desk:
        first = await desk.acquire(ALICE, request_id="q1")
    async with open_desk(tmp_path, clock) as desk:
        assert await desk.acquire(ALICE, request_id="q1") == first


@pytest.mark.sqlite
async def test_store_from_before_sessions_keeps_its_locks_tokens_and_request_ids(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with open_desk(tmp_path, clock) as desk:
        held = await desk.acquire(ALICE, "held", request_id="q1")
        free = await desk.granted(BOB, "free")
        await desk.release(BOB, free, "free")
        await desk.core.store.submit(write_request_ids)
    undo_sessions(tmp_path / "relay.db")
    clock.advance(1)
    async with open_desk(tmp_path, clock) as desk:
        status = await desk.inspect("held")
        assert (status.held, status.owner, status.token, status.remaining_ms) == (True, ALICE, token_of(held), 5_000)
        assert code_of(await desk.acquire(BOB, "held", session="s")) == "held"
        assert await desk.acquire(ALICE, "held", request_id="q1") == held
        assert token_of(await desk.renew(ALICE, token_of(held), "held")) == token_of(held)
        assert ((await desk.inspect("free")).held, (await desk.inspect("free")).token) == (False, free)
        assert await desk.granted(BOB, "free") > free
        await desk.release(ALICE, token_of(held), "held")
        assert await desk.granted(BOB, "held", session="s", tree=True) > free
    assert check_relay(tmp_path / "relay.db") == []


def write_request_ids(unit: Unit) -> None:
    """Write them to their table at once, as a store did at that time."""
    assert isinstance(unit, SqliteUnit)
    unit._requests.write()


def undo_sessions(path: Path) -> None:
    """Give a store the lock tables from before sessions again."""
    old = files("posthouse.relay.store.sqlite.schema.locks.migrations").joinpath("0001_locks.sql").read_text()
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE locks RENAME TO newer; DROP VIEW feed_locks_v2; DROP INDEX lock_requests_by_id")
    db.execute(old.split(";\n")[0])
    db.execute(
        "INSERT INTO locks SELECT mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, 0 FROM newer"
    )
    db.execute(
        "DROP TABLE newer; DROP TABLE lock_requests_state;"
        "ALTER TABLE lock_requests DROP COLUMN session; ALTER TABLE lock_requests DROP COLUMN parameters;"
        "CREATE UNIQUE INDEX lock_requests_by_id ON lock_requests (request_id, owner, mesh, resource);"
        "UPDATE schema_versions SET version = 2 WHERE component = 'locks'"
    )
    db.close()


async def test_wall_clock_steps_change_nothing(tmp_path: Path, clock: FakeClock) -> None:
    async with open_desk(tmp_path, clock) as desk:
        token = await desk.granted(ALICE, lease_ms=5_000)
        for step_s in (3_600, -7_200, 3_600):
            clock.step_wall(step_s)
            assert (await desk.inspect()).remaining_ms == 5_000
            assert code_of(await desk.acquire(BOB)) == "held"
        assert token_of(await desk.renew(ALICE, token)) == token
        clock.advance(5)
        clock.step_wall(-3_600)
        assert await desk.granted(BOB) == token + 1


@pytest.mark.sqlite
async def test_restored_lease_stays_taken_but_its_token_is_void(tmp_path: Path, clock: FakeClock) -> None:
    path, backup = tmp_path / "relay" / "relay.db", tmp_path / "backup.db"
    async with open_desk(tmp_path / "relay", clock) as desk:
        held = await desk.granted(ALICE, "held")
        free = await desk.granted(ALICE, "free")
        await desk.release(ALICE, free, "free")
    backup_relay(path, backup)
    clock.advance(100)
    async with open_desk(tmp_path / "relay", clock) as desk:
        lost = await desk.granted(BOB, "free")  # the backup does not contain it
    restore_relay(backup, path, clock)
    for _ in range(2):
        async with open_desk(tmp_path / "relay", clock) as desk:
            assert (await desk.inspect("held")).owner == ALICE
            assert code_of(await desk.acquire(BOB, "held")) == "held"
            assert code_of(await desk.renew(ALICE, held, "held")) == "stale_token"
    async with open_desk(tmp_path / "relay", clock) as desk:
        assert await desk.granted(BOB, "free") > lost
    assert check_relay(path) == []


async def test_each_start_writes_a_record_with_what_it_opened_again(tmp_path: Path, clock: FakeClock) -> None:
    async with open_desk(tmp_path, clock) as desk:
        await desk.granted(ALICE)
    async with open_desk(tmp_path, clock) as desk:
        first, second = await desk.core.store.journal(0, 10, ["lock.run_started"])
        run = second.decoded_body()
        assert (run["run_id"], run["boot_id"], run["reopened"]) == (desk.locks.run_id, clock.boot_id, 1)
        assert first.decoded_body()["reopened"] == 0 and first.ref != second.ref
