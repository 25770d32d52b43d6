"""What one process costs the others and the machine: write locks, descriptors, and the work of a registration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse import Bus
from posthouse.bus import Endpoint
from posthouse.bus.transaction import EndpointRegistry
from posthouse.sqlite.connection import Durability, open_writer
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.test_close import open_files_below, special_files


async def test_foreign_write_lock_delays_calls_and_never_the_event_loop(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    foreign = open_writer(house.root / "bus.db", Durability.NORMAL)
    try:
        foreign.execute("BEGIN IMMEDIATE")
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(bus.publish("a.b", 1, from_="c")),
            asyncio.create_task(bus.register_endpoint("a.c")),
            asyncio.create_task(bus.subscribe("a.b", Recorder())),
            asyncio.create_task(bus.depths()),
            asyncio.create_task(house.bus()),
        ]
        for _ in range(20):  # the loop runs on while another process holds the lock
            await asyncio.sleep(0.005)
        assert not any(call.done() for call in calls)
        foreign.execute("COMMIT")
        await asyncio.gather(*calls)
    finally:
        foreign.close()
    assert calls[0].result().delivered_to == 1


async def test_registering_an_endpoint_loads_no_other_endpoint(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    add = EndpointRegistry._add

    def counted(registry: EndpointRegistry, endpoint: Endpoint, is_private: bool) -> None:
        loaded.append(endpoint.subject)
        add(registry, endpoint, is_private)

    monkeypatch.setattr(EndpointRegistry, "_add", counted)
    for number in range(30):
        await bus.register_endpoint(f"many.n{number}")
    assert len(await bus.list_endpoints()) == 30
    assert len(loaded) == 30


async def test_bus_that_serves_nothing_has_no_inotify_descriptor(house: House) -> None:
    before = special_files()
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    assert [kind for kind in special_files() if "inotify" in kind] == [kind for kind in before if "inotify" in kind]
    await bus.subscribe("a.b", Recorder())
    assert len([kind for kind in special_files() if "inotify" in kind]) == 1


async def test_descriptors_do_not_grow_with_served_endpoints(
    house: House, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.bus.data_directory._MAX_OPEN_MAILBOXES", 4)
    await bus.subscribe("many.*", Recorder())
    for number in range(30):
        await bus.register_endpoint(f"many.n{number}")
    assert len(open_files_below(house.root / "mailboxes")) <= 4
