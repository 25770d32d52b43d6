from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually


def open_files_below(root: Path) -> list[str]:
    """What this process has open inside a directory."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = fd.readlink()
        except FileNotFoundError:
            continue
        if target.is_relative_to(root):
            found.append(str(target))
    return found


def special_files() -> list[str]:
    """Descriptors of the kinds a bus could leak: inotify, epoll, event and pipe."""
    kinds = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(("anon_inode", "pipe")):
            kinds.append(target.split(":")[-1] if target.startswith("anon") else "pipe")
    return sorted(kinds)


def own_threads() -> set[str]:
    """The threads of this process, without those the event loop keeps for itself."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


async def test_close_releases_locks_databases_threads_and_descriptors(house: House) -> None:
    gc.collect()  # else descriptors that an earlier test left may be closed meanwhile
    before, threads = special_files(), own_threads()
    bus = await house.bus()
    got, tapped = Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.tap(">", tapped)
    await bus.publish("a.b", 1, from_="c")
    await asyncio.gather(got.wait(1), tapped.wait(1))
    assert open_files_below(house.root) != []
    await bus.close()
    assert open_files_below(house.root) == []
    assert special_files() == before
    assert await eventually(own_threads, lambda names: names <= threads) <= threads
    assert list((house.root / "procs").iterdir()) == []


async def test_close_twice_is_fine_and_later_calls_raise(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.close()
    await bus.close()
    for call in (
        lambda: bus.publish("a.b", 1, from_="c"),
        lambda: bus.register_endpoint("a.c"),
        lambda: bus.subscribe("a.b", Recorder()),
        lambda: bus.read_inbox("a.b", 1),
        lambda: bus.dead_letters(),
    ):
        with pytest.raises(PosthouseError) as refused:
            await call()
        assert refused.value.code in {"bus_closed", "store_closed"}


async def test_close_gives_up_a_hanging_handler_and_its_message_is_delivered_again(house: House, bus: Bus) -> None:
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    await bus.publish("a.b", "precious", from_="c")
    await held.wait(1)
    await asyncio.wait_for(bus.close(), 10)
    again = await house.bus()
    got = Recorder()
    await again.register_endpoint("a.b")
    await again.subscribe("a.b", got)
    assert await got.wait(1) == ["precious"]


async def test_data_directory_is_usable_at_once_after_close(house: House) -> None:
    for number in range(5):
        bus = await house.bus()
        await bus.register_endpoint("a.b", owner="me")
        await bus.publish("a.b", number, from_="c")
        await bus.close()
    last = await house.bus()
    assert [envelope.payload for envelope in await last.read_inbox("a.b", 10)] == list(range(5))


async def test_bus_needs_to_be_opened_first(tmp_path: Path) -> None:
    bus = Bus(tmp_path / "bus")
    with pytest.raises(PosthouseError):
        await bus.publish("a.b", 1, from_="c")


async def test_failed_open_leaves_nothing_open(house: House, bus: Bus) -> None:
    await bus.close()
    (house.root / "bus.db").write_bytes(b"no database at all" * 400)
    for path in house.root.glob("bus.db-*"):
        path.unlink()
    with pytest.raises(PosthouseError):
        await house.bus()
    assert open_files_below(house.root) == []


async def test_many_buses_in_one_process_open_and_close(house: House) -> None:
    gc.collect()
    before = special_files()
    for _ in range(8):
        buses = [await house.bus() for _ in range(3)]
        await asyncio.gather(*(bus.close() for bus in buses))
    assert special_files() == before
    assert [path.name for path in (house.root / "procs").iterdir()] == []


async def test_lock_file_of_a_dead_process_is_swept(house: House) -> None:
    agent = await house.agent()
    await agent.kill()
    assert len(list((house.root / "procs").iterdir())) == 1
    bus = await house.bus()
    await bus.sweep()
    assert len(list((house.root / "procs").iterdir())) == 1
