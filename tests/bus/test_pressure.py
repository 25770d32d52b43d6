from __future__ import annotations

import asyncio

import pytest

from posthouse import Bus
from posthouse.model.envelope import Envelope, Signal
from posthouse.model.reliability import Reliability
from tests.bus.house import House
from tests.bus.limits import reasons, reliability, settled
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of
from tests.bus.waiting import eventually


async def test_full_mailbox_refuses_with_its_numbers(house: House) -> None:
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 2}))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    await bus.publish("a.b", 2, from_="c")
    result = await bus.publish("a.b", 3, from_="c")
    (refusal,) = result.rejected
    assert (refusal.reason, refusal.text) == ("backpressure", "backpressure: mailbox full (2/2)")
    assert result.mailbox_pressure == {hash_of("a.b"): 1.0}


async def test_mailbox_has_room_again_after_its_messages_were_handled(house: House) -> None:
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 2}))
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    await bus.publish("a.b", 2, from_="c")
    await bus.ack("a.b", first.message_id)
    assert (await bus.publish("a.b", 3, from_="c")).delivered_to == 1
    got = Recorder()
    await bus.subscribe("a.b", got)
    await got.wait(2)
    await settled(bus, "a.b")
    assert (await bus.publish("a.b", 4, from_="c")).delivered_to == 1


async def test_message_that_is_being_handled_still_counts(house: House) -> None:
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 2}))
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    await bus.publish("a.b", 1, from_="c")
    await held.wait(1)
    await bus.publish("a.b", 2, from_="c")
    assert reasons(await bus.publish("a.b", 3, from_="c")) == ["backpressure"]
    held.release.set()


async def test_back_pressure_never_overshoots_under_64_concurrent_publishes(house: House) -> None:
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 10}))
    await bus.register_endpoint("a.b")
    results = await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(64)))
    assert sum(result.delivered_to for result in results) == 10
    assert len(house.mailbox("a.b").new) == 10


async def test_back_pressure_never_overshoots_under_64_concurrent_publishes_from_two_processes(house: House) -> None:
    limits = reliability(backpressure={"maxMailboxSize": 25})
    agents = [await house.agent(reliability=limits), await house.agent(reliability=limits)]
    await agents[0].ask("register", subject="a.b")
    results = await asyncio.gather(
        *(agent.ask("burst", subject="a.b", count=64, from_=f"s{n}") for n, agent in enumerate(agents))
    )
    assert sum(result["delivered_to"] for part in results for result in part) == 25
    assert len(house.mailbox("a.b").new) == 25


async def test_sender_is_warned_by_a_signal_and_sees_refusals_in_the_result(house: House) -> None:
    limits = reliability(backpressure={"maxMailboxSize": 5, "pressureWarningAt": 0.8})
    bus = await house.bus(reliability=limits)
    signals: list[Signal] = []
    await bus.register_endpoint("a.b")
    await bus.on_signal("the.sender", lambda _subject, signal: signals.append(signal))
    for number in range(6):
        await bus.publish("a.b", number, from_="the.sender")
    await eventually(lambda: len(signals) == 2)
    assert [signal.state for signal in signals] == ["warning", "critical"]
    assert [signal.type for signal in signals] == ["backpressure"] * 2
    assert signals[0].endpoint_subject == "a.b"
    assert signals[0].data == {"pressure": 0.8, "currentSize": 4, "maxMailboxSize": 5}
    assert signals[1].data == {"pressure": 1.0, "currentSize": 5, "maxMailboxSize": 5}


async def test_fan_out_delivers_to_those_with_room(house: House) -> None:
    bus = await house.bus(reliability=reliability(backpressure={"maxMailboxSize": 1}))
    for name in ("full", "empty"):
        await bus.register_endpoint(f"team.{name}")
    await bus.publish("team.full", 1, from_="c")
    result = await bus.publish("team.*", 2, from_="c")
    assert result.delivered_to == 1
    assert [(entry.subject, entry.reason) for entry in result.rejected] == [("team.full", "backpressure")]


async def test_agents_cannot_configure_reliability_at_publish_time(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(TypeError):
        await bus.publish("a.b", 1, from_="c", reliability=Reliability())  # type: ignore[call-arg]


async def test_handler_error_text_never_stops_the_bus(house: House, bus: Bus) -> None:
    async def handler(_envelope: Envelope) -> None:
        raise RuntimeError("\ud800 odd text \x00")

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", 1, from_="c")
    assert len(await eventually(lambda: house.mailbox("a.b").failed)) == 1
