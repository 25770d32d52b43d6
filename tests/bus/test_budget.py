from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.budget import GivenBudget
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.limits import reasons
from tests.bus.listening import Recorder
from tests.bus.mailboxes import unrouted
from tests.bus.waiting import bounded, eventually


def refusal(result: Any) -> tuple[str, str]:
    """Reason and text of the one refusal."""
    (entry,) = result.rejected
    return str(entry.reason), entry.text


async def dialogue(bus: Bus, **settings: Any) -> tuple[list[str], list[Any]]:
    """Two agents that answer each other; return who was reached and the result that ended it."""
    reached: list[str] = []
    results: list[Any] = []
    over = asyncio.Event()

    def answerer(other: str) -> Any:
        async def handler(envelope: Envelope) -> None:
            reached.append(envelope.subject)
            results.append(await bus.publish(other, "and you?", from_=envelope.subject, **settings))
            if results[-1].rejected:
                over.set()

        return handler

    for own, other in (("agent.one", "agent.two"), ("agent.two", "agent.one")):
        await bus.register_endpoint(own)
        await bus.subscribe(own, answerer(other))
    await bus.publish("agent.one", "hello", from_="user")
    await bounded(over)
    return reached, results


async def test_under_the_chain_rule_a_question_is_answered_and_not_asked_again(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    reached, results = await dialogue(bus)
    assert reached == ["agent.one", "agent.two", "agent.one"]
    assert refusal(results[-1]) == ("budget_exceeded", "cycle detected: agent.two already in chain")


async def test_dialogue_goes_on_until_its_hops_are_used_up(house: House) -> None:
    bus = await house.bus(max_hops=5)
    reached, results = await dialogue(bus)
    assert len(reached) == 1 + 2 * 4  # the user's message has no answer, each later question has one
    assert refusal(results[-1]) == ("budget_exceeded", "max hops exceeded (5/5)")


async def test_calls_bound_a_dialogue_too(house: House) -> None:
    bus = await house.bus(max_hops=50, default_call_budget=4)
    reached, results = await dialogue(bus)
    assert len(reached) == 1 + 2 * 3
    assert refusal(results[-1]) == ("budget_exceeded", "call budget exhausted")


async def test_handler_cannot_free_itself_by_giving_a_fresh_budget(bus: Bus) -> None:
    generous = GivenBudget(hop_count=0, max_hops=1_000, ancestor_chain=(), call_budget_remaining=1_000)
    reached, results = await dialogue(bus, budget=generous)
    assert len(reached) == 1 + 2 * 19
    assert refusal(results[-1]) == ("budget_exceeded", "max hops exceeded (20/20)")


async def test_tasks_that_a_handler_starts_inherit_its_budget(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    results: list[Any] = []
    await bus.register_endpoint("a.b")

    async def handler(envelope: Envelope) -> None:
        task = asyncio.create_task(bus.publish("a.b", "again", from_=envelope.subject))
        results.append(await task)

    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", 1, from_="c")
    await eventually(lambda: results)
    assert refusal(results[0]) == ("budget_exceeded", "cycle detected: a.b already in chain")


async def test_sync_handler_inherits_its_budget_in_its_thread(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    results: list[Any] = []
    loop = asyncio.get_running_loop()
    await bus.register_endpoint("a.b")

    def handler(envelope: Envelope) -> None:
        call = bus.publish("a.b", "again", from_=envelope.subject, in_reply_to=envelope.id)
        results.append(asyncio.run_coroutine_threadsafe(call, loop).result(10))

    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", 1, from_="c")
    await eventually(lambda: results)
    assert refusal(results[0])[0] == "budget_exceeded"


async def test_two_agents_that_poll_and_answer_with_in_reply_to_stop(house: House) -> None:
    bus = await house.bus(max_hops=3)
    reached: list[str] = []
    for subject in ("agent.one", "agent.two"):
        await bus.register_endpoint(subject)
    await bus.publish("agent.one", "hello", from_="user")
    own, other = "agent.one", "agent.two"
    for _ in range(10):
        (envelope,) = await bus.read_inbox(own, 1)
        reached.append(own)
        result = await bus.publish(other, "and you?", from_=own, in_reply_to=envelope.id)
        await bus.ack(own, envelope.id)
        if result.rejected:
            break
        own, other = other, own
    assert reached == ["agent.one"] + ["agent.two", "agent.one"] * 2
    assert refusal(result) == ("budget_exceeded", "max hops exceeded (3/3)")


async def test_in_reply_to_still_works_after_the_message_was_acknowledged(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    await bus.register_endpoint("a.b")
    first = await bus.publish("a.b", 1, from_="c")
    await bus.ack("a.b", first.message_id)
    result = await bus.publish("a.b", 2, from_="a.b", in_reply_to=first.message_id)
    assert refusal(result) == ("budget_exceeded", "cycle detected: a.b already in chain")


@pytest.mark.parametrize("unknown", ["nonsense", "", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
async def test_reply_to_an_unknown_message_is_refused(bus: Bus, unknown: str) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError):
        await bus.publish("a.b", 1, from_="c", in_reply_to=unknown)


async def test_each_hop_is_counted_named_and_charged(house: House, bus: Bus) -> None:
    subjects = [f"chain.n{number}" for number in range(4)]
    for subject in subjects:
        await bus.register_endpoint(subject)

    async def forward(envelope: Envelope) -> None:
        position = subjects.index(envelope.subject)
        await bus.publish(subjects[position + 1], position, from_=envelope.subject)

    for subject in subjects[:-1]:
        await bus.subscribe(subject, forward)
    await bus.publish(subjects[0], "go", from_="c")
    await eventually(lambda: house.mailbox(subjects[3]).new)
    (last,) = await bus.read_inbox(subjects[3], 10)
    assert last.budget.hop_count == 4
    assert list(last.budget.ancestor_chain) == subjects
    assert last.budget.call_budget_remaining == 96


async def test_message_of_a_handler_expires_no_later_than_its_cause(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.register_endpoint("a.c")
    start_ms = house.clock.wall_ns() // 1_000_000

    async def handler(envelope: Envelope) -> None:
        await bus.publish("a.c", 1, from_=envelope.subject)

    await bus.publish("a.b", 1, from_="c")
    house.clock.advance(600)
    await bus.subscribe("a.b", handler)
    await eventually(lambda: house.mailbox("a.c").new)
    (caused,) = await bus.read_inbox("a.c", 1)
    assert caused.budget.ttl == start_ms + 7 * 86_400_000


async def test_given_budget_narrows_and_never_widens(bus: Bus, house: House) -> None:
    await bus.register_endpoint("a.b")
    now_ms = house.clock.wall_ns() // 1_000_000
    given = GivenBudget(max_hops=3, ttl=now_ms + 8 * 86_400_000, call_budget_remaining=2)
    await bus.publish("a.b", 1, from_="c", budget=given)
    (envelope,) = await bus.read_inbox("a.b", 1)
    assert (envelope.budget.max_hops, envelope.budget.call_budget_remaining) == (3, 1)
    assert envelope.budget.ttl == now_ms + 7 * 86_400_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (GivenBudget(hop_count=20), "max hops exceeded (20/20)"),
        (GivenBudget(hop_count=2, max_hops=2), "max hops exceeded (2/2)"),
        (GivenBudget(ancestor_chain=("x.y", "a.b")), "cycle detected: a.b already in chain"),
        (GivenBudget(ttl=1), "message expired (TTL)"),
        (GivenBudget(call_budget_remaining=0), "call budget exhausted"),
        (
            GivenBudget(hop_count=99, ancestor_chain=("a.b",), ttl=1, call_budget_remaining=0),
            "max hops exceeded (99/20)",
        ),
        (GivenBudget(ancestor_chain=("a.b",), ttl=1, call_budget_remaining=0), "cycle detected: a.b already in chain"),
        (GivenBudget(ttl=1, call_budget_remaining=0), "message expired (TTL)"),
    ],
)
async def test_used_up_budget_is_refused_and_becomes_a_dead_letter(house: House, given: GivenBudget, text: str) -> None:
    bus = await house.bus(cycle_rule="chain")
    await bus.register_endpoint("a.b")
    result = await bus.publish("a.b", {"n": 1}, from_="c", budget=given)
    assert result.delivered_to == 0
    assert refusal(result) == ("budget_exceeded", text)
    (letter,) = await bus.dead_letters("a.b")
    assert letter.reason == text
    assert house.mailbox("a.b").depth == 0
    assert unrouted(house.root) == []


async def test_budget_is_checked_per_endpoint_of_a_fan_out(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    for name in ("one", "two"):
        await bus.register_endpoint(f"team.{name}")
    result = await bus.publish("team.*", 1, from_="c", budget=GivenBudget(ancestor_chain=("team.one",)))
    assert result.delivered_to == 1
    assert [(entry.subject, str(entry.reason)) for entry in result.rejected] == [("team.one", "budget_exceeded")]


async def test_publish_outside_of_handlers_starts_with_a_fresh_budget(bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    for number in range(8):
        assert reasons(await bus.publish("a.b", number, from_="c")) == []
    await got.wait(8)
    assert {envelope.budget.hop_count for envelope in got.envelopes} == {1}


@pytest.mark.parametrize(
    "settings", [{"max_hops": 0}, {"default_ttl_ms": -1}, {"default_call_budget": -1}, {"cycle_rule": "never"}]
)
async def test_bus_with_invalid_limits_is_refused(house: House, settings: dict[str, Any]) -> None:
    with pytest.raises(PosthouseError) as refused:
        await house.bus(**settings)
    assert refused.value.code == "value_invalid"
