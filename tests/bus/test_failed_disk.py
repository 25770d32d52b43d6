"""A disk that fails under bus.db: the bus closes itself, every later call raises that failure, and nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.bus import core as core_module
from posthouse.journal.store import DirectStore
from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, PosthouseError
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded, eventually
from tests.faults.failing_vfs import FailingVFS


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FailingVFS]:
    """The disk under bus.db of every bus the test opens."""
    vfs = FailingVFS()
    monkeypatch.setattr(core_module, "DirectStore", partial(DirectStore, vfs=vfs.name))
    yield vfs
    vfs.write_failure = vfs.sync_failure = None


async def break_down(bus: Bus, disk: FailingVFS) -> PosthouseError:
    """Let the next commit fail and return the error that its publisher gets."""
    disk.write_failure = "write"
    with pytest.raises(Fatal) as raised:
        await bus.publish("a.b", "lost", from_="c")
    return raised.value


async def test_publish_whose_commit_fails_raises_and_so_does_every_later_call(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    failure = await break_down(bus, disk)
    assert failure.code == "store_failed"
    disk.write_failure = None  # it works again, but nothing says what it has lost
    calls = (
        lambda: bus.publish("a.b", 1, from_="c"),
        lambda: bus.register_endpoint("x.y"),
        lambda: bus.subscribe("a.b", Recorder()),
        lambda: bus.read_inbox("a.b"),
        lambda: bus.ack("a.b", "x"),
        lambda: bus.tap(">", Recorder()),
        lambda: bus.request("a.b", 1, from_="c", timeout_s=10),
        lambda: bus.dead_letters(),
        lambda: bus.breakers(),
        lambda: bus.metrics(),
        lambda: bus.rebuild_index(),
        lambda: bus.sweep(),
        lambda: bus.list_rules(),
    )
    for call in calls:
        with pytest.raises(Fatal) as raised:
            await asyncio.wait_for(call(), 10)
        assert raised.value.code == "store_failed"


async def test_failed_bus_closes_itself_and_lets_others_serve_and_sweep(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder())
    assert len(life_signs(house.root)) == 1
    await break_down(bus, disk)
    await eventually(lambda: life_signs(house.root) == [])
    disk.write_failure = None
    other, got = await house.bus(reliability=reliability()), Recorder()
    await other.register_endpoint("a.b")
    await other.subscribe("a.b", got)
    await other.publish("a.b", "alive", from_="c")
    assert await got.wait(1) == ["alive"]


async def test_failed_bus_releases_every_descriptor(house: House, disk: FailingVFS) -> None:
    await (await house.bus()).close()
    before = open_files(house.root)
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder())
    await bus.tap(">", Recorder())
    await break_down(bus, disk)
    await asyncio.wait_for(bus.close(), 10)
    assert open_files(house.root) == before


def life_signs(root: Path) -> list[Path]:
    return list((root / "procs").iterdir())


def open_files(root: Path) -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            found.append(target)
    return sorted(found)


async def test_bus_whose_recovery_fails_leaves_nothing_open(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_parts: object) -> bool:
        raise OSError(5, "Input/output error")

    before = open_files(house.root)
    monkeypatch.setattr("posthouse.bus.recovery.recover", fail)
    with pytest.raises(PosthouseError, match="Input/output"):
        await Bus(house.root, clock=FakeClock()).open()
    assert open_files(house.root) == before
    assert life_signs(house.root) == []


async def test_every_waiting_call_raises_the_failure(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    asked = asyncio.create_task(bus.request("a.b", "?", from_="c", timeout_s=60))
    await eventually(lambda: house.mailbox("a.b").new)
    disk.write_failure = "write"
    published = [asyncio.create_task(bus.publish("a.b", number, from_="c")) for number in range(20)]
    done, waiting = await asyncio.wait([asked, *published], timeout=10)
    assert not waiting
    assert {type(task.exception()) for task in done} == {Fatal}


async def test_running_handler_is_cancelled_and_its_message_stays(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability())
    for subject in ("a.b", "a.slow"):
        await bus.register_endpoint(subject)
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(_envelope: object) -> None:
        entered.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await bus.subscribe("a.slow", slow)
    message_id = (await bus.publish("a.slow", 1, from_="c")).message_id
    await bounded(entered)
    await break_down(bus, disk)
    await bounded(cancelled)
    await asyncio.wait_for(bus.close(), 10)
    assert [path.name for path in (house.mailbox("a.slow").path / "cur").iterdir()] == [message_id]


async def test_sync_that_fails_under_a_checkpoint_ends_the_bus(house: House, disk: FailingVFS) -> None:
    """No publish fails by itself here: the checkpoint's thread finds it."""
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 100_000}))
    await bus.register_endpoint("a.b")
    disk.sync_failure = "sync"
    with pytest.raises(Fatal) as raised:
        for number in range(5_000):
            await bus.publish("a.b", "x" * 8_000, from_="c")
            if number % 10 == 0:
                await asyncio.sleep(0)
    assert raised.value.code == "store_failed"
    await asyncio.wait_for(bus.close(), 10)


async def test_power_safe_bus_fails_as_well_and_closes(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability(), durability="power")
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "kept", from_="c")
    await break_down(bus, disk)
    await asyncio.wait_for(bus.close(), 10)
    disk.write_failure = None
    again = await house.bus(reliability=reliability())
    assert [envelope.payload for envelope in await again.read_inbox("a.b", 10)][:1] == ["kept"]


async def test_bus_that_cannot_be_opened_for_a_failing_disk_raises_and_leaves_nothing(
    tmp_path: Path, disk: FailingVFS
) -> None:
    house = House(tmp_path / "bus")
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    await bus.close()
    disk.write_failure = "write"
    before = open_files(house.root)
    with pytest.raises(PosthouseError):
        await Bus(house.root, clock=FakeClock()).open()
    await asyncio.sleep(0)
    assert open_files(house.root) == before
    assert life_signs(house.root) == []


async def test_closed_bus_can_be_opened_again_when_the_disk_is_well(house: House, disk: FailingVFS) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    kept = (await bus.publish("a.b", "kept", from_="c")).message_id
    await break_down(bus, disk)
    await bus.close()
    disk.write_failure = None
    await bus.open()
    assert kept in [envelope.id for envelope in await bus.read_inbox("a.b", 10)]
    assert (await bus.publish("a.b", "more", from_="c")).delivered_to == 1
