"""publish(wait_s=...): waits for rate, room and breaker, in order, and never longer than it may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse import AccessRule, Action, Bus, Envelope, PosthouseError
from posthouse.model.budget import GivenBudget
from tests.bus.house import House
from tests.bus.limits import reasons, reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded, eventually

FULL = {"backpressure": {"maxMailboxSize": 1}}
LONG_S = 30  # never reached by a test that passes


async def waits(task: asyncio.Task[Any]) -> None:
    """Let the publish make several tries and see that it has not ended."""
    done, _ = await asyncio.wait({task}, timeout=0.1)
    assert not done


async def test_publish_waits_until_the_rate_allows_it(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 1, "windowSecs": 60}})
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    second = asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S))
    await waits(second)
    house.clock.advance(60)
    assert (await second).delivered_to == 1


async def test_publish_waits_for_room(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    second = asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S))
    await waits(second)
    assert await bus.ack("a.b", first.message_id) == "acked"
    assert (await second).delivered_to == 1


async def test_publish_waits_for_room_that_another_process_makes(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    second = asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S))
    await waits(second)
    other = await house.bus()
    assert await other.ack("a.b", first.message_id) == "acked"
    assert (await second).delivered_to == 1


async def test_publish_waits_for_the_breaker(house: House) -> None:
    config = reliability(circuitBreaker={"failureThreshold": 1, "cooldownMs": 30_000})
    bus, got = await house.bus(reliability=config), Recorder(fails=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    second = asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S))
    await waits(second)
    house.clock.advance(30)
    assert (await second).delivered_to == 1


async def test_publish_returns_the_refusal_when_its_time_is_up(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    assert reasons(await bus.publish("a.b", 2, from_="c", wait_s=0.05)) == ["backpressure"]


@pytest.mark.parametrize("refused_by", ["access", "budget"])
async def test_access_and_budget_are_not_waited_for(house: House, refused_by: str) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    if refused_by == "access":
        await bus.add_rule(AccessRule(from_="c", to="a.b", action=Action.DENY, priority=1))
    budget = GivenBudget(call_budget_remaining=0) if refused_by == "budget" else None
    result = await asyncio.wait_for(bus.publish("a.b", 1, from_="c", budget=budget, wait_s=LONG_S), LONG_S / 2)
    assert reasons(result) == ["access_denied" if refused_by == "access" else "budget_exceeded"]
    assert len(await bus.dead_letters("a.b")) == 1


async def test_waiting_is_neither_charged_nor_recorded_as_refusals(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 3}, **FULL})
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    second = asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S))
    await waits(second)
    await bus.ack("a.b", first.message_id)
    assert (await second).delivered_to == 1
    assert [record.type for record in await bus.read_journal(0)].count("bus.refused") == 0
    await bus.ack("a.b", (await second).message_id)
    assert (await bus.publish("a.b", 3, from_="c")).delivered_to == 1
    assert reasons(await bus.publish("a.b", 4, from_="c")) == ["rate_limited"]


async def test_waiting_publishes_of_one_sender_keep_their_order(house: House) -> None:
    bus, got = await house.bus(reliability=reliability(**FULL)), Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    sent = [asyncio.create_task(bus.publish("a.b", number, from_="c", wait_s=LONG_S)) for number in range(12)]
    await got.wait(1)
    got.release.set()
    assert await got.wait(12) == list(range(12))
    assert [(await task).delivered_to for task in sent] == [1] * 12


async def test_publish_does_not_overtake_an_earlier_one_that_waits_for_another_mailbox(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    for subject in ("a.full", "a.empty"):
        await bus.register_endpoint(subject)
    first = await bus.publish("a.full", 0, from_="c")
    earlier = asyncio.create_task(bus.publish("a.full", 1, from_="c", wait_s=LONG_S))
    await waits(earlier)
    later = asyncio.create_task(bus.publish("a.empty", 2, from_="c", wait_s=LONG_S))
    await waits(later)
    assert reasons(await bus.publish("a.empty", 3, from_="c", wait_s=0.05)) == ["backpressure"]
    await bus.ack("a.full", first.message_id)
    assert (await earlier).message_id < (await later).message_id


async def test_cancelled_publish_gives_its_turn_away(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    for subject in ("a.full", "a.empty"):
        await bus.register_endpoint(subject)
    await bus.publish("a.full", 0, from_="c")
    earlier = asyncio.create_task(bus.publish("a.full", 1, from_="c", wait_s=LONG_S))
    await waits(earlier)
    later = asyncio.create_task(bus.publish("a.empty", 2, from_="c", wait_s=LONG_S))
    await waits(later)
    earlier.cancel()
    assert (await asyncio.wait_for(later, LONG_S / 2)).delivered_to == 1


async def test_wait_ends_before_the_time_of_the_handler(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL), handler_timeout_s=0.5)
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    async def handler(_message: Envelope) -> None:
        await bus.publish("next.stage", "work", from_="a.b", wait_s=LONG_S)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", "input", from_="c")
    await settled(bus, "a.b")
    (letter,) = await bus.dead_letters("a.b")
    assert "PublishRefused" in letter.reason
    assert "mailbox full" in letter.reason


async def test_publish_to_the_own_full_mailbox_is_refused_at_once(house: House) -> None:
    bus, refused, entered = await house.bus(reliability=reliability(**FULL)), asyncio.Event(), asyncio.Event()

    async def handler(_message: Envelope) -> None:
        entered.set()
        result = await bus.publish("a.b", "to myself", from_="someone.else", wait_s=LONG_S, refusals="return")
        assert reasons(result) == ["backpressure"]
        refused.set()

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", "input", from_="c")
    await bounded(entered)
    await bounded(refused, LONG_S / 2)


async def test_polling_agent_is_refused_at_once_by_its_own_full_mailbox(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    result = await asyncio.wait_for(bus.publish("a.b", 2, from_="a.b", wait_s=LONG_S), LONG_S / 2)
    assert reasons(result) == ["backpressure"]


async def test_middle_stage_that_waits_passes_every_message_on(house: House) -> None:
    bus, got = await house.bus(reliability={"rateLimit": {"maxPerWindow": 20}, "circuitBreaker": {}}), Recorder()

    async def middle(message: Envelope) -> None:
        await bus.publish("line.end", message.payload, from_="line.middle", wait_s=LONG_S)

    await bus.register_endpoint("line.end")
    await bus.subscribe("line.end", got)
    await bus.register_endpoint("line.middle")
    await bus.subscribe("line.middle", middle)
    for number in range(60):
        await bus.publish("line.middle", number, from_=f"source.{number // 20}")
    for windows in (20, 40, 60):
        await got.wait(windows)
        house.clock.advance(60)
    assert got.payloads == list(range(60))
    assert await eventually(lambda: house.mailbox("line.middle").names("failed") == [])


@pytest.mark.parametrize("wait_s", [0, -1, float("nan"), "1", True])
async def test_wait_that_is_no_positive_number_is_refused(bus: Bus, wait_s: Any) -> None:
    with pytest.raises(PosthouseError) as wrong:
        await bus.publish("a.b", 1, from_="c", wait_s=wait_s)
    assert wrong.value.code == "value_invalid"


async def test_pattern_cannot_be_waited_for(bus: Bus) -> None:
    with pytest.raises(PosthouseError) as wrong:
        await bus.publish("a.*", 1, from_="c", wait_s=1)
    assert (wrong.value.code, wrong.value.fields["name"]) == ("value_invalid", "wait_s")


async def test_closing_the_bus_ends_a_wait(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    waiting = [asyncio.create_task(bus.publish("a.b", 2, from_="c", wait_s=LONG_S)) for _ in range(2)]
    await waits(waiting[0])
    await bus.close()
    for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), LONG_S / 2):
        assert isinstance(ended, PosthouseError)
        assert ended.code == "bus_closed"


async def test_handler_that_waits_when_the_bus_closes_gives_its_message_back(house: House) -> None:
    bus, entered = await house.bus(reliability=reliability(**FULL)), asyncio.Event()
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    async def middle(_message: Envelope) -> None:
        entered.set()
        await bus.publish("next.stage", "work", from_="a.b", wait_s=LONG_S)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", middle)
    await bus.publish("a.b", "input", from_="c")
    await bounded(entered)
    await bus.close()
    box = house.mailbox("a.b")
    assert (len(box.names("new") + box.names("cur")), box.names("failed")) == (1, [])
