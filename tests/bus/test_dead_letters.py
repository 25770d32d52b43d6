from __future__ import annotations

import pytest

from posthouse import Bus
from posthouse.model.budget import GivenBudget
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.mailboxes import unrouted
from tests.bus.waiting import eventually


async def one_failed(bus: Bus, house: House, subject: str = "a.b") -> str:
    """A message that its handler refused; the handler is gone afterwards."""
    await bus.register_endpoint(subject)
    unsubscribe = await bus.subscribe(subject, Recorder(fails=True))
    message_id = (await bus.publish(subject, {"n": 1}, from_="c", reply_to="c.in")).message_id
    await eventually(lambda: house.mailbox(subject).failed)
    await unsubscribe()
    return message_id


async def test_dead_letters_are_listed_per_endpoint_and_altogether(house: House, bus: Bus) -> None:
    message_id = await one_failed(bus, house)
    await bus.publish("no.where", 2, from_="c")
    (letter,) = await bus.dead_letters("a.b")
    assert letter.envelope is not None
    assert (letter.id, letter.subject, letter.envelope.payload) == (message_id, "a.b", {"n": 1})
    assert "this handler fails" in letter.reason
    assert letter.failed_at == "2023-11-14T22:13:20.000Z"
    everything = await bus.dead_letters()
    assert sorted(letter.subject for letter in everything) == ["a.b", "no.where"]


async def test_requeued_dead_letter_is_delivered_with_a_fresh_budget(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    spent = GivenBudget(hop_count=20, call_budget_remaining=1)
    refused = await bus.publish("a.b", {"n": 1}, from_="c", reply_to="c.in", budget=spent)
    assert refused.rejected
    (letter,) = await bus.dead_letters("a.b")
    house.clock.advance(600)
    await bus.requeue("a.b", letter.id)
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == [{"n": 1}]
    (envelope,) = got.envelopes
    assert (envelope.from_, envelope.reply_to) == ("c", "c.in")
    assert (envelope.budget.hop_count, envelope.budget.call_budget_remaining) == (1, 99)
    assert envelope.budget.ttl == house.clock.wall_ns() // 1_000_000 + 7 * 86_400_000
    assert await bus.dead_letters() == []
    assert house.mailbox("a.b").failed == []


async def test_unrouted_dead_letter_is_requeued_once_its_endpoint_exists(house: House, bus: Bus) -> None:
    await bus.publish("late.one", "hello", from_="c")
    (letter,) = await bus.dead_letters()
    await bus.register_endpoint("late.one")
    await bus.requeue("late.one", letter.id)
    assert [envelope.payload for envelope in await bus.read_inbox("late.one", 10)] == ["hello"]
    assert unrouted(house.root) == []


async def test_requeue_of_an_unknown_dead_letter_says_so(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.requeue("a.b", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert refused.value.code == "dead_letter_unknown"


async def test_requeue_obeys_the_access_rules_and_loses_nothing(house: House, bus: Bus) -> None:
    import msgspec

    from posthouse.model.access_rules import AccessRule

    message_id = await one_failed(bus, house)
    deny = {"from": "c", "to": "a.b", "action": "deny", "priority": 1}
    await bus.add_rule(msgspec.convert(deny, AccessRule))
    result = await bus.requeue("a.b", message_id)
    assert result.delivered_to == 0
    assert len(await bus.dead_letters("a.b")) == 1


async def test_purge_removes_older_dead_letters_and_nothing_else(house: House, bus: Bus) -> None:
    await one_failed(bus, house)
    await bus.publish("no.where", "old", from_="c")
    house.clock.advance(29 * 86_400)
    await bus.publish("no.where", "young", from_="c")
    house.clock.advance(2 * 86_400)
    assert await bus.purge() == 2
    assert [letter["envelope"]["payload"] for letter in unrouted(house.root)] == ["young"]
    assert house.mailbox("a.b").failed == []


async def test_purge_takes_an_age(house: House, bus: Bus) -> None:
    from datetime import timedelta

    await bus.publish("no.where", 1, from_="c")
    house.clock.advance(10)
    assert await bus.purge(timedelta(seconds=11)) == 0
    assert await bus.purge(timedelta(seconds=9)) == 1
    assert await bus.dead_letters() == []


async def test_observer_fires_for_every_dead_letter(house: House, bus: Bus) -> None:
    seen: list[str] = []
    await bus.on_dead_letter(lambda letter: seen.append(letter.reason))
    await one_failed(bus, house)
    await bus.publish("no.where", 1, from_="c")
    await bus.publish("a.b", 1, from_="c", budget=GivenBudget(ttl=1))
    house.mailbox("a.b").path.joinpath("new", "01ARZ3NDEKTSV4RRFFQ69G5FAV").write_text("{broken")
    await bus.subscribe("a.b", Recorder())
    await eventually(lambda: len(seen), lambda count: count == 4)


async def test_failing_observer_does_not_affect_other_observers(house: House, bus: Bus) -> None:
    seen: list[str] = []

    async def failing(_letter: object) -> None:
        raise RuntimeError("observer fails")

    await bus.on_dead_letter(failing)
    await bus.on_dead_letter(lambda letter: seen.append(letter.reason))
    await bus.publish("no.where", 1, from_="c")
    await eventually(lambda: len(seen) == 1)
    assert len(unrouted(house.root)) == 1


async def test_dead_letters_survive_a_restart(house: House, bus: Bus) -> None:
    message_id = await one_failed(bus, house)
    await bus.close()
    again = await house.bus()
    assert [letter.id for letter in await again.dead_letters("a.b")] == [message_id]


async def test_corrupt_file_in_failed_does_not_stop_the_list(house: House, bus: Bus) -> None:
    message_id = await one_failed(bus, house)
    failed = house.mailbox("a.b").path / "failed"
    (failed / "01ARZ3NDEKTSV4RRFFQ69G5FAV").write_text("{")
    (failed / "stray name").write_bytes(b"\xff\xfe")
    assert message_id in [letter.id for letter in await bus.dead_letters("a.b")]


async def test_requeued_dead_letter_may_fail_again(house: House, bus: Bus) -> None:
    message_id = await one_failed(bus, house)

    async def refuse(_envelope: Envelope) -> None:
        raise ValueError("still no")

    await bus.requeue("a.b", message_id)
    await bus.subscribe("a.b", refuse)
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert "still no" in letter["reason"]
