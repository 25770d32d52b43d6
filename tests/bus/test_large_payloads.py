"""Large payloads: refused above the limit, and encoded and written without stopping the event loop."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from posthouse import Bus, PosthouseError
from posthouse.bus.publishing import LARGE_BYTES
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder

LIMIT_BYTES = 1_000


@pytest.mark.parametrize(
    "payload", ["x" * (LIMIT_BYTES - 1), [0] * LIMIT_BYTES, {"k" * LIMIT_BYTES: 1}, ["ü" * (LIMIT_BYTES // 2)]]
)
async def test_payload_above_the_limit_is_refused_before_anything_is_stored(house: House, payload: object) -> None:
    bus = await house.bus(max_payload_bytes=LIMIT_BYTES)
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", payload, from_="c")
    assert (refused.value.code, refused.value.fields) == ("payload_too_large", {"limit_bytes": LIMIT_BYTES})
    assert house.mailbox("a.b").new == house.mailbox("a.b").names("tmp") == []
    assert await bus.depths() == {"a.b": 0}


async def test_payload_of_exactly_the_limit_is_stored(house: House) -> None:
    bus = await house.bus(max_payload_bytes=LIMIT_BYTES)
    await bus.register_endpoint("a.b")
    assert (await bus.publish("a.b", "x" * (LIMIT_BYTES - 2), from_="c")).delivered_to == 1


async def test_default_limit_is_a_mebibyte(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    assert (await bus.publish("a.b", "x" * (1024 * 1024 - 2), from_="c")).delivered_to == 1
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", "x" * (1024 * 1024 - 1), from_="c")
    assert refused.value.code == "payload_too_large"


async def test_event_loop_runs_on_while_a_large_payload_is_encoded(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    assert (await bus.publish("a.b", [0] * 500_000, from_="c")).delivered_to == 1
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking
    assert ticks > 100  # a publish takes about ten iterations; the check of half a million values lets thousands pass


async def test_large_message_keeps_its_place_between_small_ones(house: House) -> None:
    bus, got = await house.bus(reliability=reliability()), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    sizes = [1, LARGE_BYTES * 2, 2, LARGE_BYTES * 3, 3]
    for size in sizes:
        await bus.publish("a.b", "x" * size, from_="c")
    assert [len(payload) for payload in await got.wait(len(sizes))] == sizes


async def test_large_fan_out_reaches_every_mailbox_with_one_record_each(house: House) -> None:
    bus = await house.bus(reliability=reliability())
    subjects = [f"team.m{number}" for number in range(5)]
    for subject in subjects:
        await bus.register_endpoint(subject)
    result = await bus.publish("team.*", "x" * (LARGE_BYTES * 2), from_="c")
    assert result.delivered_to == 5
    published = [record for record in await bus.read_journal(0) if record.type == "bus.published"]
    assert [record.ref for record in published] == [result.message_id] * 5
    assert await bus.depths() == dict.fromkeys(subjects, 1)
    for subject in subjects:
        assert house.mailbox(subject).new == [result.message_id]


async def test_large_message_whose_file_cannot_be_written_is_withdrawn(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    folder = house.mailbox("a.b").path / "tmp"
    folder.rename(folder.with_name("gone"))
    with pytest.raises(PosthouseError) as failed:
        await bus.publish("a.b", "x" * (LARGE_BYTES * 2), from_="c")
    assert failed.value.code == "mailbox_unwritable"
    folder.with_name("gone").rename(folder)
    assert await bus.depths() == {"a.b": 0}
