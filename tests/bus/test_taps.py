from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually


async def test_tap_sees_everything_and_consumes_nothing(house: House, bus: Bus) -> None:
    tapped, got = Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    await bus.tap(">", tapped)
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(5)]
    assert await tapped.wait(5) == list(range(5))
    assert tapped.ids == ids
    assert len(house.mailbox("a.b").new) == 5
    await bus.subscribe("a.b", got)
    assert await got.wait(5) == list(range(5))


async def test_tap_in_another_process_consumes_nothing_and_sees_what_was_handled(house: House) -> None:
    server, watcher = await house.agent(), await house.agent()
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b")
    await watcher.ask("tap", pattern=">")
    for number in range(10):
        await server.ask("publish", subject="a.b", payload=number, from_="c")
    assert await server.wait_handled(10) == list(range(10))
    tapped = await eventually(lambda: watcher.seen("tapped"), lambda seen: len(seen) == 10)
    assert [event["payload"] for event in tapped] == list(range(10))


async def test_tap_starts_at_the_head(bus: Bus) -> None:
    tapped = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "before", from_="c")
    await bus.tap("a.*", tapped)
    await bus.publish("a.b", "after", from_="c")
    assert await tapped.wait(1) == ["after"]


async def test_tap_sees_only_what_matches(bus: Bus) -> None:
    tapped = Recorder()
    for subject in ("a.b", "x.y"):
        await bus.register_endpoint(subject)
    await bus.tap("a.*", tapped)
    await bus.publish("x.y", "no", from_="c")
    await bus.publish("a.b", "yes", from_="c")
    assert await tapped.wait(1) == ["yes"]


async def test_tap_sees_a_fan_out_once_per_endpoint(bus: Bus) -> None:
    tapped = Recorder()
    for subject in ("a.b", "a.c"):
        await bus.register_endpoint(subject)
    await bus.tap("a.>", tapped)
    await bus.publish("a.*", 1, from_="c")
    await tapped.wait(2)
    assert sorted(envelope.subject for envelope in tapped.envelopes) == ["a.b", "a.c"]


async def test_failing_or_slow_tap_disturbs_no_delivery(bus: Bus) -> None:
    failing, holding, got = Recorder(fails=True), Recorder(holds=True), Recorder()
    await bus.register_endpoint("a.b")
    await bus.tap(">", failing)
    await bus.tap(">", holding)
    await bus.subscribe("a.b", got)
    for number in range(5):
        await asyncio.wait_for(bus.publish("a.b", number, from_="c"), 5)
    assert await got.wait(5) == list(range(5))
    assert await failing.wait(5) == list(range(5))
    holding.release.set()


async def test_closed_tap_sees_nothing_more(bus: Bus) -> None:
    tapped, other = Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    untap = await bus.tap(">", tapped)
    await bus.publish("a.b", 1, from_="c")
    await tapped.wait(1)
    await untap()
    await bus.tap(">", other)
    await bus.publish("a.b", 2, from_="c")
    await other.wait(1)
    assert tapped.payloads == [1]


async def test_tap_continues_after_the_cursor_of_a_former_one(house: House, bus: Bus) -> None:
    first, second = Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    tap = await bus.tap(">", first)
    await bus.publish("a.b", "seen", from_="c")
    await first.wait(1)
    cursor = await eventually(lambda: tap.cursor, lambda seen: seen != "")
    await tap()
    await bus.publish("a.b", "missed", from_="c")
    await bus.close()
    again = await house.bus()
    await again.tap(">", second, after=cursor)
    await again.publish("a.b", "later", from_="c")
    seen = await eventually(lambda: second.payloads, lambda payloads: "later" in payloads)
    assert seen in (["missed", "later"], ["seen", "missed", "later"])


async def test_cursor_of_another_store_is_told_where_to_start_again(house: House, bus: Bus, tmp_path: Path) -> None:
    async with Bus(tmp_path / "other") as other:
        foreign = (await other.tap(">", Recorder())).cursor
    with pytest.raises(PosthouseError) as refused:
        await bus.tap(">", Recorder(), after=foreign)
    assert refused.value.code == "cursor_reset"


@pytest.mark.parametrize("cursor", ["nonsense", "AAAA"])
async def test_cursor_of_no_store_is_refused(bus: Bus, cursor: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.tap(">", Recorder(), after=cursor)
    assert refused.value.code == "cursor_invalid"


@pytest.mark.parametrize("pattern", ["", "a b", "a.>.b"])
async def test_bad_pattern_is_refused(bus: Bus, pattern: str) -> None:
    for call in (bus.tap, bus.subscribe):
        with pytest.raises(PosthouseError) as refused:
            await call(pattern, Recorder())
        assert refused.value.code == "subject_invalid"
