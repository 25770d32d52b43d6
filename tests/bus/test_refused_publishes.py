"""A refused publish inside a handler never lets the work vanish; in plain code the result tells of it."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse import AccessRule, Action, Bus, Envelope, PosthouseError, PublishRefused, Refused
from posthouse.model.budget import GivenBudget
from tests.bus.house import House
from tests.bus.limits import reasons, reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually

FULL = {"backpressure": {"maxMailboxSize": 1}}


async def serve(bus: Bus, subject: str, handler: Any) -> None:
    await bus.register_endpoint(subject)
    await bus.subscribe(subject, handler)


async def test_pipeline_of_160_inputs_under_default_limits_loses_none(tmp_path: Path) -> None:
    arrived: list[int] = []
    async with Bus(tmp_path / "bus") as bus:

        async def first(message: Envelope) -> None:
            await bus.publish("line.second", message.payload, from_="line.first")

        async def second(message: Envelope) -> None:
            await bus.publish("line.third", message.payload, from_="line.second")

        async def third(message: Envelope) -> None:
            arrived.append(message.payload)

        for subject, handler in (("line.first", first), ("line.second", second), ("line.third", third)):
            await serve(bus, subject, handler)
        for number in range(160):
            assert (await bus.publish("line.first", number, from_=f"source.{number % 2}")).delivered_to == 1
        for subject in ("line.first", "line.second", "line.third"):
            await settled(bus, subject)
        letters = await bus.dead_letters()
        kept = [letter.envelope.payload for letter in letters if letter.envelope is not None]
        assert sorted([*arrived, *kept]) == list(range(160))
        assert len(arrived) == 100
        assert {breaker.circuit.value for breaker in await bus.breakers()} == {"CLOSED"}


async def test_refusal_that_a_handler_ignores_leaves_its_message_as_a_dead_letter(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    async def careless(_message: Envelope) -> None:
        await bus.publish("next.stage", "work", from_="a.b")

    await serve(bus, "a.b", careless)
    await bus.publish("a.b", "input", from_="c")
    await settled(bus, "a.b")
    (letter,) = await bus.dead_letters()
    assert letter.envelope is not None
    assert (letter.subject, letter.envelope.payload) == ("a.b", "input")
    assert "mailbox full (1/1)" in letter.reason
    assert letter.error is not None
    assert letter.error.type.endswith("PublishRefused")


async def test_error_tells_the_result_and_when_to_retry(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 1, "windowSecs": 60}}, refusals="raise")
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    house.clock.advance(20)
    with pytest.raises(PublishRefused) as refused:
        await bus.publish("a.b", 2, from_="c")
    assert isinstance(refused.value, Refused)
    assert refused.value.code == "publish_refused"
    assert reasons(refused.value.result) == ["rate_limited"]
    assert refused.value.retry_after_s == 40
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), again.result) == (PublishRefused, refused.value.result)
    house.clock.advance(40)
    assert (await bus.publish("a.b", 2, from_="c")).delivered_to == 1


async def test_open_breaker_tells_when_it_lets_a_probe_through(house: House) -> None:
    config = reliability(circuitBreaker={"failureThreshold": 1, "cooldownMs": 30_000})
    bus = await house.bus(reliability=config)
    await serve(bus, "a.b", Recorder(fails=True))
    await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    house.clock.advance(10)
    with pytest.raises(PublishRefused) as refused:
        await bus.publish("a.b", 2, from_="c", refusals="raise")
    assert reasons(refused.value.result) == ["circuit_open"]
    assert refused.value.retry_after_s == 20


async def test_full_mailbox_names_no_time_to_retry(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL), refusals="raise")
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    with pytest.raises(PublishRefused) as refused:
        await bus.publish("a.b", 2, from_="c")
    assert refused.value.retry_after_s is None


async def test_plain_code_gets_the_refusal_as_a_result(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    assert reasons(await bus.publish("a.b", 2, from_="c")) == ["backpressure"]


@pytest.mark.parametrize("per", ["call", "bus"])
async def test_handler_that_asks_for_results_gets_the_refusal_as_one(house: House, per: str) -> None:
    bus = await house.bus(reliability=reliability(**FULL), refusals="return" if per == "bus" else None)
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")
    seen: list[list[str]] = []

    async def careful(_message: Envelope) -> None:
        result = await bus.publish("next.stage", "work", from_="a.b", refusals="return" if per == "call" else None)
        seen.append(reasons(result))

    await serve(bus, "a.b", careful)
    await bus.publish("a.b", "input", from_="c")
    assert await eventually(lambda: seen) == [["backpressure"]]
    await settled(bus, "a.b")
    assert await bus.dead_letters() == []


async def test_call_overrides_the_bus(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL), refusals="raise")
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    assert reasons(await bus.publish("a.b", 2, from_="c", refusals="return")) == ["backpressure"]


async def test_any_other_word_for_refusals_is_refused(house: House, bus: Bus) -> None:
    with pytest.raises(PosthouseError) as wrong:
        await bus.publish("a.b", 1, from_="c", refusals="ignore")  # type: ignore[arg-type]
    assert wrong.value.code == "value_invalid"
    with pytest.raises(PosthouseError):
        Bus(house.root, refusals="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("refused_by", ["access", "budget"])
async def test_handler_goes_on_when_the_refused_message_has_its_own_dead_letter(house: House, refused_by: str) -> None:
    bus, went_on = await house.bus(reliability=reliability()), asyncio.Event()
    await bus.register_endpoint("next.stage")
    if refused_by == "access":
        await bus.add_rule(AccessRule(from_="a.b", to="next.stage", action=Action.DENY, priority=1))
    budget = GivenBudget(call_budget_remaining=0) if refused_by == "budget" else None

    async def handler(_message: Envelope) -> None:
        result = await bus.publish("next.stage", "work", from_="a.b", budget=budget)
        assert result.delivered_to == 0
        went_on.set()

    await serve(bus, "a.b", handler)
    with capture_logs() as entries:
        await bus.publish("a.b", "input", from_="c")
        await asyncio.wait_for(went_on.wait(), 15)
    await settled(bus, "a.b")
    (letter,) = await bus.dead_letters()
    assert (letter.subject, letter.envelope and letter.envelope.payload) == ("next.stage", "work")
    assert [entry["subject"] for entry in entries if entry["event"] == "publish_refused"] == ["next.stage"]


async def test_pattern_that_reaches_no_endpoint_fails_the_handler(house: House) -> None:
    bus = await house.bus(reliability=reliability())

    async def handler(_message: Envelope) -> None:
        await bus.publish("team.*", "work", from_="a.b")

    await serve(bus, "a.b", handler)
    await bus.publish("a.b", "input", from_="c")
    await settled(bus, "a.b")
    letters = await bus.dead_letters()
    assert {letter.subject for letter in letters} == {"a.b", "team.*"}


async def test_partly_refused_fan_out_returns_its_result_and_is_logged(house: House) -> None:
    bus, results = await house.bus(reliability=reliability(**FULL)), []
    for subject in ("team.full", "team.empty"):
        await bus.register_endpoint(subject)
    await bus.publish("team.full", "fills it", from_="c")

    async def handler(_message: Envelope) -> None:
        results.append(await bus.publish("team.*", "work", from_="a.b"))

    await serve(bus, "a.b", handler)
    with capture_logs() as entries:
        await bus.publish("a.b", "input", from_="c")
        (result,) = await eventually(lambda: results)
    assert (result.delivered_to, reasons(result)) == (1, ["backpressure"])
    (entry,) = [entry for entry in entries if entry["event"] == "publish_refused"]
    assert (entry["sender"], entry["subject"], entry["delivered_to"]) == ("a.b", "team.full", 1)


async def test_failing_by_a_refusal_tells_the_breaker_nothing(house: House) -> None:
    config = reliability(**FULL, circuitBreaker={"failureThreshold": 1})
    bus = await house.bus(reliability=config)
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    async def handler(_message: Envelope) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(bus.publish("next.stage", "work", from_="a.b"))

    await serve(bus, "a.b", handler)
    for number in range(3):
        assert (await bus.publish("a.b", number, from_="c")).delivered_to == 1
        await settled(bus, "a.b")
    assert len(await bus.dead_letters("a.b")) == 3
    assert {view.circuit.value for view in await bus.breakers()} == {"CLOSED"}


async def test_refusals_of_a_sender_are_logged_once_a_minute(house: House) -> None:
    bus = await house.bus(reliability=reliability(**FULL))
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 0, from_="c")
    with capture_logs() as entries:
        for sender in ("c", "c", "d", "c"):
            await bus.publish("a.b", 1, from_=sender)
        house.clock.advance(60)
        await bus.publish("a.b", 1, from_="c")
    logged = [entry["sender"] for entry in entries if entry["event"] == "publish_refused"]
    assert logged == ["c", "d", "c"]


async def test_publish_to_no_endpoint_is_logged(bus: Bus) -> None:
    with capture_logs() as entries:
        for _ in range(3):
            await bus.publish("no.one", 1, from_="c")
    (entry,) = [entry for entry in entries if entry["event"] == "publish_reached_no_endpoint"]
    assert (entry["sender"], entry["subject"]) == ("c", "no.one")
