"""What a leader records: a copy that applies it is the leader's store, and nothing is recorded without a follower."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.node import Role
from posthouse.relay.engine import RelayEngine
from posthouse.relay.ops.maintenance import check_relay, reindex_relay, restore_relay
from posthouse.relay.replication.followed_copy import FollowedCopy, promote_copy
from posthouse.relay.store.copies import ChangeLog
from posthouse.relay.store.event_rows import event_row
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.protocol import Unit
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_writer
from tests.relay.authors import ALICE, BOB, CAROL
from tests.relay.replication.leader import FOLLOWER, catch_up, leading, tables_of, take_copy


async def live(engine: RelayEngine, clock: FakeClock) -> None:
    """Do a bit of everything that changes a store."""
    mesh = f"mesh{clock.wall_ns()}"
    await engine.administration.create_mesh(ALICE.node, mesh)
    await engine.administration.save_member(ALICE.node, mesh, BOB.node, "bob", Role.MEMBER)
    await engine.invites.create(ALICE.node, mesh, uses=2, expires_s=60, role=Role.MEMBER)
    await engine.accept_many([ALICE.raw(30_000, ("d", "x"), content=str(number)) for number in range(20)])
    soon = str(clock.wall_ns() // 10**9 + 5)
    await engine.accept(ALICE.raw(1, ("expiration", soon)))
    for number in range(3):
        message = ALICE.event(1000, ("p", BOB.node), ("c", f"{mesh}-{number}"), content="hello")
        await engine.accept(_raw(message))
    await engine.participation.block(CAROL.node, "main", BOB.node)
    clock.advance(10)
    await engine.accept(ALICE.raw(5, ("e", message.id)))


def _raw(event: object) -> bytes:
    from posthouse.model.event import Event, encode_event

    assert isinstance(event, Event)
    return encode_event(event)


async def sweep(engine: RelayEngine) -> None:
    """Run housekeeping, which deletes and updates without records of its own."""
    await engine._housekeeping.run_once()
    await engine.store.submit(lambda unit: unit.sweep_expired(engine.clock.wall_ns(), 10))


async def test_copy_that_applies_every_group_equals_the_leader(tmp_path: Path) -> None:
    clock = FakeClock()
    async with leading(tmp_path / "leader", clock) as engine:
        await live(engine, clock)
        copy = await take_copy(engine, tmp_path / "copy")
        for _ in range(3):
            await live(engine, clock)
            await sweep(engine)
        assert await catch_up(engine, copy) > 10
        copy.close()
        assert tables_of(copy.path) == tables_of(tmp_path / "leader" / "relay.db")
    assert check_relay(copy.path) == []
    assert copy.path.stat().st_mode & 0o777 == 0o600


async def test_table_without_primary_key_is_copied(tmp_path: Path) -> None:
    async with leading(tmp_path / "leader") as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        await engine.store._store.writer.run(  # type: ignore[attr-defined]
            lambda tx: tx.db.execute("UPDATE swept_records SET first_seen_through_ns = 77")
        )
        await catch_up(engine, copy)
        copy.close()
    assert tables_of(copy.path)["swept_records"] == [(77,)]


async def test_relay_that_nobody_follows_records_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with leading(tmp_path / "leader", clock) as engine:
        await live(engine, clock)
        assert engine.store.changes is not None
        assert not engine.store.changes.is_on
        observer = await engine.store._store.writer.run(lambda tx: tx.observer)  # type: ignore[attr-defined]
        assert observer is None


async def test_item_that_fails_in_a_group_is_in_no_changeset(tmp_path: Path) -> None:
    async with leading(tmp_path / "leader") as engine:
        copy = await take_copy(engine, tmp_path / "copy")

        def fail(unit: Unit) -> None:
            event = BOB.event()
            unit.add_events([event_row(event, event.canonical())])
            raise ValueError("a defect")

        good = [engine.accept(ALICE.raw(content=str(number))) for number in range(4)]
        results = await asyncio.gather(*good[:2], engine.store.submit(fail), *good[2:], return_exceptions=True)
        assert [type(each).__name__ for each in results].count("ValueError") == 1
        await catch_up(engine, copy)
        copy.close()
        assert tables_of(copy.path) == tables_of(tmp_path / "leader" / "relay.db")


async def test_recording_goes_on_over_a_restart_of_the_leader(tmp_path: Path) -> None:
    clock = FakeClock()
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        await live(engine, clock)
        await catch_up(engine, copy)
        await live(engine, clock)
    async with leading(tmp_path / "leader", clock) as engine:
        await live(engine, clock)
        assert await catch_up(engine, copy) > 0
        copy.close()
        assert tables_of(copy.path) == tables_of(tmp_path / "leader" / "relay.db")


async def _refusal(engine: RelayEngine, copy: object) -> str:
    with pytest.raises(PosthouseError) as refused:
        await catch_up(engine, copy)  # type: ignore[arg-type]
    assert refused.value.code == "follow_restart"
    return str(refused.value)


async def test_copy_of_a_leader_that_was_restored_cannot_go_on(tmp_path: Path) -> None:
    clock, store = FakeClock(), tmp_path / "leader" / "relay.db"
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        await catch_up(engine, copy)
    backup_store(store, tmp_path / "backup.db")
    restore_relay(tmp_path / "backup.db", store, clock)
    async with leading(tmp_path / "leader", clock) as engine:
        assert "new recording" in await _refusal(engine, copy)
    copy.close()


async def test_copy_ahead_of_a_file_that_was_put_back_cannot_go_on(tmp_path: Path) -> None:
    clock, store = FakeClock(), tmp_path / "leader" / "relay.db"
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
    backup_store(store, tmp_path / "backup.db")
    async with leading(tmp_path / "leader", clock) as engine:
        for _ in range(5):
            await engine.accept(ALICE.raw())
        await catch_up(engine, copy)
    store.unlink()
    (tmp_path / "backup.db").rename(store)
    async with leading(tmp_path / "leader", clock) as engine:
        assert "rolled back" in await _refusal(engine, copy)
        for _ in range(9):
            await engine.accept(BOB.raw())
        assert "different histories" in await _refusal(engine, copy)
    copy.close()


async def test_copy_of_a_store_that_was_written_without_the_recording_cannot_go_on(tmp_path: Path) -> None:
    clock, store = FakeClock(), tmp_path / "leader" / "relay.db"
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
    reindex_relay(store)
    async with leading(tmp_path / "leader", clock) as engine:
        await _refusal(engine, copy)
    copy.close()


async def test_copy_of_a_leader_whose_schema_has_changed_cannot_go_on(tmp_path: Path) -> None:
    clock, store = FakeClock(), tmp_path / "leader" / "relay.db"
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
    db = open_writer(store, Durability.FULL)
    db.execute("UPDATE change_stream SET schema = 'that of an older version'")
    db.close()
    async with leading(tmp_path / "leader", clock) as engine:
        await _refusal(engine, copy)
    copy.close()


async def test_changes_are_kept_within_their_bound_and_an_absent_follower_starts_again(tmp_path: Path) -> None:
    async with leading(tmp_path / "leader", max_bytes=100_000) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        for number in range(100):
            await engine.accept(ALICE.raw(content=f"{number}" * 1_000))
        assert engine.store.changes is not None
        assert 50_000 < sum(group.size for group in engine.store.changes.kept()) <= 100_000
        assert "that old" in await _refusal(engine, copy)
        copy.close()
        copy = await take_copy(engine, tmp_path / "copy")
        await engine.accept(ALICE.raw())
        assert await catch_up(engine, copy) == 1
        copy.close()
        assert tables_of(copy.path) == tables_of(tmp_path / "leader" / "relay.db")


def _is_on(changes: ChangeLog) -> bool:
    return changes.is_on


async def test_recording_ends_when_no_follower_asks(tmp_path: Path) -> None:
    clock = FakeClock()
    async with leading(tmp_path / "leader", clock, absent_s=0.2) as engine:
        changes = engine.store.changes
        assert changes is not None
        (await take_copy(engine, tmp_path / "copy")).close()
        assert _is_on(changes)
        clock.advance(1)
        async with asyncio.timeout(20):
            while _is_on(changes):  # noqa: ASYNC110 - no event says when
                await asyncio.sleep(0.01)
        await engine.accept(ALICE.raw())
        assert changes.kept() == []


async def test_group_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path / "leader") as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        before = tables_of(copy.path)
        await engine.accept(ALICE.raw())
        await engine.accept(ALICE.raw())
        page = await engine.followers.read(FOLLOWER, copy.position, copy.head, 0)
        for groups in (page.groups[1:], page.groups[::-1]):
            with pytest.raises(PosthouseError) as refused:
                copy.apply(groups)
            assert refused.value.code == "copy_invalid"
        assert tables_of(copy.path) == before
        in_the_way = "INSERT INTO journal SELECT ?, at_ns, type, mesh, actor, ref, body FROM journal LIMIT 1"
        copy._db.execute(in_the_way, (page.groups[1].head,))
        damaged = tables_of(copy.path)
        with pytest.raises(PosthouseError) as refused:
            copy.apply(page.groups)
        assert refused.value.code == "copy_invalid"
        assert tables_of(copy.path) == damaged
        copy.close()


async def test_lag_is_the_age_of_the_oldest_change_that_a_follower_lacks(tmp_path: Path) -> None:
    clock = FakeClock()
    async with leading(tmp_path / "leader", clock) as engine:
        copy = await take_copy(engine, tmp_path / "copy")
        await catch_up(engine, copy)
        assert (engine.followers.lag_s, engine.followers.lag_records) == (0.0, 0)
        await engine.accept(ALICE.raw())
        clock.advance(7)
        await engine.accept(ALICE.raw())
        assert engine.followers.lag_s == pytest.approx(7, abs=0.1)
        assert engine.followers.lag_records == 2
        await catch_up(engine, copy)
        await catch_up(engine, copy)
        assert (engine.followers.lag_s, engine.followers.lag_records) == (0.0, 0)
        copy.close()


async def test_promotion_that_was_killed_in_the_middle_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, folder = FakeClock(), tmp_path / "copy"
    async with leading(tmp_path / "leader", clock) as engine:
        await engine.accept(ALICE.raw())
        (await take_copy(engine, folder)).close()
        former = (await engine.store.extent()).epoch
    mark = MarkFile(folder / "relay.high-water")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", _die)
        with pytest.raises(InterruptedError):
            promote_copy(folder, clock, mark)
    with pytest.raises(PosthouseError) as refused:
        FollowedCopy(folder / "follower.db")
    assert refused.value.code == "copy_promoted"
    assert promote_copy(folder, clock, mark) != former
    assert check_relay(folder / "relay.db") == []
    with pytest.raises(PosthouseError) as refused:
        promote_copy(folder, clock, mark)
    assert refused.value.code == "usage"


def _die(_source: Path, _target: Path) -> None:
    raise InterruptedError
