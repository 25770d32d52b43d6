"""No fencing token is granted twice, and no acknowledged record is missed in silence, whatever happens to the files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

import pytest

from posthouse.journal.append import JournalTransaction
from posthouse.journal.cursor import Cursor
from posthouse.journal.store import Store
from posthouse.keys import keyfile
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.lease import LockRow
from posthouse.model.lock_api import LockGrant
from posthouse.relay.listen import ListenAddress
from posthouse.relay.ops.maintenance import backup_relay, check_relay, restore_relay
from posthouse.relay.server import KEY_NAME, RelayServer, ServerSettings
from posthouse.relay.store.high_water import FILE_NAME as MARK_NAME
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.sqlite.store import COMPONENTS, FILE_NAME
from posthouse.relay.wire.lock_operations import Acquire, Release
from posthouse.sqlite.store_lock import StoreLock
from posthouse.storage.sql_files import Component
from tests.relay.locks.desk import node

ALICE, BOB = node(1), node(2)


class House:
    """The directory of one relay whose clock stands still, and every token that its relays granted."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "relay"
        self.path = self.directory / FILE_NAME
        self.clock = FakeClock()
        self.high_water: Path | None = None
        self.tokens: list[int] = []

    @property
    def mark_file(self) -> MarkFile:
        return MarkFile(self.high_water or self.directory / MARK_NAME)

    @asynccontextmanager
    async def run(self, *, is_new: bool = False) -> AsyncIterator[RelayServer]:
        settings = ServerSettings(
            ListenAddress("127.0.0.1", 0),
            self.directory,
            is_new=is_new,
            high_water=self.high_water,
            clock=self.clock,
        )
        server = RelayServer(settings)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()

    async def grant(self, *resources: str, is_new: bool = False) -> None:
        """Run a relay that grants and releases these locks."""
        async with self.run(is_new=is_new) as server:
            locks = server.context.engine.locks
            for resource in resources:
                answer = await locks.ask(ALICE, Acquire(resource, 5_000))
                assert isinstance(answer, LockGrant), answer
                self.tokens.append(answer.token)
                await locks.ask(ALICE, Release(resource, answer.token))

    def restore(self, backup: Path | None) -> str:
        return restore_relay(backup, self.path, self.clock, self.mark_file)

    async def refusal(self, *, is_new: bool = False) -> PosthouseError:
        """Return why the relay does not start."""
        with pytest.raises(PosthouseError) as refused:
            await self.grant(is_new=is_new)
        return refused.value

    def assert_no_token_twice(self) -> None:
        assert len(set(self.tokens)) == len(self.tokens)
        assert self.tokens == sorted(self.tokens)
        assert self.tokens[-1] < 2**53
        assert check_relay(self.path) == []


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_first_start_of_a_new_relay_counts_from_one(house: House) -> None:
    await house.grant("a", "b", "a")
    assert house.tokens == [1, 2, 3]


async def test_each_later_start_counts_from_the_clock(house: House) -> None:
    await house.grant("a")
    house.clock.advance(60)
    await house.grant("b")
    assert house.tokens[1] == house.clock.wall_ns() // 1_000 + 1


async def test_lock_first_used_after_the_backup_gets_no_token_twice(house: House, tmp_path: Path) -> None:
    await house.grant("a")
    backup_relay(house.path, tmp_path / "backup.db")
    await house.grant("new", "new")
    house.restore(tmp_path / "backup.db")
    await house.grant("new", "a", "new")
    house.assert_no_token_twice()


async def test_two_restores_of_one_backup_within_a_second_grant_no_token_twice(house: House, tmp_path: Path) -> None:
    await house.grant("a")
    backup_relay(house.path, tmp_path / "backup.db")
    for _ in range(3):  # the clock stands still
        house.restore(tmp_path / "backup.db")
        await house.grant("a", "b")
    house.assert_no_token_twice()


async def test_old_snapshot_of_the_directory_put_back_soon_after_a_restore_grants_no_token_twice(
    house: House, tmp_path: Path
) -> None:
    await house.grant("a")
    await house.grant("a")
    backup_relay(house.path, tmp_path / "backup.db")
    shutil.copytree(house.directory, tmp_path / "snapshot")
    house.restore(tmp_path / "backup.db")
    await house.grant("a")
    shutil.rmtree(house.directory)
    shutil.copytree(tmp_path / "snapshot", house.directory)
    house.clock.advance(2)
    await house.grant("a")
    house.assert_no_token_twice()


async def test_restore_without_the_replaced_store_relies_on_the_clock(house: House, tmp_path: Path) -> None:
    await house.grant("a")
    backup_relay(house.path, tmp_path / "backup.db")
    await house.grant("a", "a")
    shutil.rmtree(house.directory)
    house.directory.mkdir(mode=0o700)
    house.clock.advance(1)
    house.restore(tmp_path / "backup.db")
    keyfile.create(house.directory / KEY_NAME)
    await house.grant("a")
    house.assert_no_token_twice()


async def test_empty_store_with_the_old_key_grants_no_token_twice(house: House) -> None:
    await house.grant("a")
    await house.grant("a")
    house.path.unlink()
    await house.grant("a", is_new=True)
    house.assert_no_token_twice()


async def test_copied_back_file_is_refused_and_grants_no_token_twice_in_place(house: House, tmp_path: Path) -> None:
    await house.grant("a")
    shutil.copy(house.path, tmp_path / "copy.db")
    await house.grant("a", "b")
    shutil.copy(tmp_path / "copy.db", house.path)
    refused = await house.refusal()
    assert refused.code == "store_rolled_back"
    assert "restore --in-place" in str(refused.hint)
    house.restore(None)
    await house.grant("b", "a")
    house.assert_no_token_twice()


async def test_wall_clock_behind_the_journal_is_warned_about_and_takes_no_token_back(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.grant("a")
    await house.grant("a")
    assert "wall_clock_behind_journal" not in capsys.readouterr().out
    house.clock.step_wall(-86_400)
    await house.grant("a")
    assert "wall_clock_behind_journal" in capsys.readouterr().out
    house.assert_no_token_twice()


async def test_copy_of_the_whole_directory_is_found_by_a_mark_on_another_disk(house: House, tmp_path: Path) -> None:
    (tmp_path / "other disk").mkdir(mode=0o700)
    house.high_water = tmp_path / "other disk" / "mark"
    await house.grant("a")
    shutil.copytree(house.directory, tmp_path / "snapshot")
    await house.grant("a")
    assert not (house.directory / MARK_NAME).exists()
    shutil.rmtree(house.directory)
    shutil.copytree(tmp_path / "snapshot", house.directory)
    assert (await house.refusal()).code == "store_rolled_back"
    shutil.rmtree(house.directory)
    assert (await house.refusal()).code == "store_missing"
    await house.grant("a", is_new=True)
    house.assert_no_token_twice()


async def test_mark_that_cannot_be_written_stops_the_start(house: House, tmp_path: Path) -> None:
    house.high_water = tmp_path / "not mounted" / "mark"
    assert (await house.refusal()).code == "high_water_unwritable"


async def test_damaged_mark_stops_the_start_until_a_restore_in_place(house: House) -> None:
    await house.grant("a")
    house.mark_file.path.write_bytes(b"{")
    refused = await house.refusal()
    assert (refused.code, "restore --in-place" in str(refused.hint)) == ("high_water_damaged", True)
    house.restore(None)
    await house.grant("a")
    house.assert_no_token_twice()


async def test_relay_with_a_key_does_not_start_without_its_store(house: House) -> None:
    await house.grant("a")
    house.path.unlink()
    refused = await house.refusal()
    assert (refused.code, "--new" in str(refused.hint)) == ("store_missing", True)
    assert not house.path.exists()


async def test_relay_with_a_store_does_not_start_without_its_key(house: House) -> None:
    await house.grant("a")
    key = house.directory / KEY_NAME
    kept = key.read_bytes()
    key.unlink()
    refused = await house.refusal()
    assert (refused.code, f"keys new --key-file {key}" in str(refused.hint)) == ("relay_key_missing", True)
    assert not key.exists()
    key.write_bytes(kept)
    key.chmod(0o600)
    await house.grant("a")
    house.assert_no_token_twice()


async def test_relay_starts_with_a_new_key_that_the_operator_made(house: House) -> None:
    await house.grant("a")
    (house.directory / KEY_NAME).unlink()
    keyfile.create(house.directory / KEY_NAME)
    await house.grant("a")
    house.assert_no_token_twice()


async def test_relay_starts_although_its_lock_is_held_for_an_instant(house: House) -> None:
    await house.grant("a")
    lock = StoreLock(house.directory / "relay", exclusive=True)  # what `relay status` does
    starting = asyncio.create_task(house.grant("a"))
    await asyncio.sleep(0)
    lock.close()
    await starting


async def test_new_is_refused_when_there_is_a_store(house: House) -> None:
    await house.grant("a", is_new=True)
    assert (await house.refusal(is_new=True)).code == "store_exists"
    await house.grant("a")


@pytest.mark.parametrize("content", [b"", None])
async def test_start_that_died_between_store_and_key_is_no_loss(house: House, content: bytes | None) -> None:
    house.directory.mkdir(mode=0o700)
    house.path.write_bytes(b"")
    house.path.chmod(0o600)
    if content is None:  # died after the key, before the first table
        await house.grant("a")
        house.mark_file.path.unlink()
        house.path.write_bytes(b"")
    await house.grant("a")
    house.assert_no_token_twice()


async def test_start_with_new_that_died_goes_on_without_it(house: House) -> None:
    await house.grant("a")
    house.path.write_bytes(b"")
    assert (await house.refusal()).code == "store_rolled_back"
    house.mark_file.give_up()  # what --new does first
    await house.grant("a")
    house.assert_no_token_twice()


async def test_cursor_beyond_the_head_is_told_to_start_again(house: House) -> None:
    async with house.run() as server:
        store = server.context.engine.store
        extent = await store.extent()
        with pytest.raises(PosthouseError) as refused:
            await server.context.engine.query(ALICE, [], cursor=str(Cursor(store.epoch, extent.head + 1)))
        assert refused.value.code == "cursor_reset"
        assert refused.value.fields["cursor"] == str(Cursor(store.epoch, extent.head))


async def test_mark_follows_the_store_and_covers_every_token_after_a_stop(house: House) -> None:
    async with house.run() as server:
        first = house.mark_file.read()
        granted = await server.context.engine.locks.ask(ALICE, Acquire("a", 5_000))
        keeper = server.context.engine._mark_keeper
        assert keeper is not None
        await keeper.write()
        counter = await server.context.engine.store.last_token()
        assert isinstance(granted, LockGrant) and granted.token <= counter
        assert first is not None and house.mark_file.read() == first.__class__(
            first.epoch, first.head + 1, counter, first.boot_id, first.boot_ns
        )
        granted = await server.context.engine.locks.ask(BOB, Acquire("b", 5_000))
        head = (await server.context.engine.store.extent()).head
    last = house.mark_file.read()
    assert isinstance(granted, LockGrant) and last is not None
    assert last.head == head and last.token_counter >= granted.token


async def test_lease_that_the_mark_saw_over_stays_over_after_a_reboot(house: House) -> None:
    async with house.run() as server:
        await server.context.engine.locks.ask(ALICE, Acquire("over", 5_000))
        house.clock.advance(6)
        await server.context.engine.locks.ask(ALICE, Acquire("active", 5_000))
    house.clock.reboot()
    async with house.run() as server:
        assert isinstance(await server.context.engine.locks.ask(BOB, Acquire("over", 5_000)), LockGrant)
        assert isinstance(await server.context.engine.locks.ask(BOB, Acquire("active", 5_000)), PosthouseError)


class FirstVersion(Component):
    """A component of the schema as posthouse 1 created it."""

    @cached_property
    def migrations(self) -> tuple[str, ...]:
        return Component(self.name, self.package).migrations[:1]


def old_grant(tx: JournalTransaction, row: LockRow) -> None:
    """Write a lock as posthouse 1 did."""
    tx.db.execute(
        "INSERT INTO locks VALUES ('main', ?, ?, ?, ?, ?, ?, 0)",
        (row.resource, row.owner, row.token, row.lease_ms, row.deadline_boot_ns, row.is_released),
    )
    body = {
        "owner": row.owner,
        "token": row.token,
        "lease_ms": row.lease_ms,
        "run_id": "r",
        "granted_boot_ns": row.deadline_boot_ns - row.lease_ms * 10**6,
        "deadline_boot_ns": row.deadline_boot_ns,
    }
    tx.append("lock.acquired", mesh="main", actor=row.owner, ref=row.resource, body=body)


@pytest.mark.parametrize("highest", [2**33 + 5, 2**52])
async def test_old_store_opens_and_its_tokens_continue_above_every_former_one(house: House, highest: int) -> None:
    await house.grant()  # makes the key
    house.path.unlink()
    house.mark_file.path.unlink()
    store = Store(house.path, tuple(FirstVersion(each.name, each.package) for each in COMPONENTS), house.clock)
    deadline_ns = house.clock.boot_ns() + 5_000 * 10**6

    def fill(tx: JournalTransaction) -> None:
        tx.db.execute(
            "INSERT INTO lock_run VALUES (1, 'r', ?, ?, ?)", (store.epoch, house.clock.boot_id, house.clock.boot_ns())
        )
        run = {"run_id": "r", "boot_id": house.clock.boot_id, "boot_ns": house.clock.boot_ns(), "reopened": 0}
        tx.append("lock.run_started", ref="r", body=run)
        old_grant(tx, LockRow("a", BOB, 7, 5_000, deadline_ns))
        old_grant(tx, LockRow("b", BOB, highest, 5_000, deadline_ns))

    store.writer.run_blocking(fill)
    store.close()
    async with house.run() as server:
        assert isinstance(await server.context.engine.locks.ask(ALICE, Acquire("b", 5_000)), PosthouseError)
    house.clock.advance(5)
    house.tokens = [highest]
    await house.grant("c", "a", "b")
    house.assert_no_token_twice()


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"x" * 8192)])
async def test_unreadable_store_is_replaced_by_a_backup(
    house: House, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    await house.grant("a")
    backup_relay(house.path, tmp_path / "backup.db")
    await house.grant("b")
    spoil(house.path)
    assert (house.directory / KEY_NAME).exists()
    house.restore(tmp_path / "backup.db")
    await house.grant("b")
    house.assert_no_token_twice()
