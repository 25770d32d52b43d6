from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.access_rules import AccessRule, Action
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from tests.bus.counters import counted_letters, letters_on_disk
from tests.bus.house import House
from tests.bus.limits import reasons, reliability, settled
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of, unrouted
from tests.bus.test_journal import of_type
from tests.bus.test_lost_database import killed_at_every_step
from tests.bus.waiting import eventually

DENIED = AccessRule(from_="guest", to="a.b", action=Action.DENY, priority=1)


def bounded(**bounds: Any) -> dict[str, Any]:
    breaker = {"enabled": False}
    return reliability(deadLetters=bounds, circuitBreaker=breaker)


async def test_too_many_letters_of_refused_messages_drop_the_oldest(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=3))
    for number in range(5):
        await bus.publish("no.where", number, from_="c")
    assert [letter["envelope"]["payload"] for letter in unrouted(house.root)] == [2, 3, 4]
    assert (await bus.metrics()).by_status == {"dlq": 3}
    assert counted_letters(house.root, "unrouted") == letters_on_disk(house.root, "unrouted")
    dropped = [record.decoded_body() for record in of_type(house.root, "bus.purged")]
    assert [(len(body["ids"]), body["by_limit"]) for body in dropped] == [(1, True), (1, True)]


async def test_large_letters_of_refused_messages_lose_their_payload_first(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxBytes=10_000))
    await bus.register_endpoint("a.b")
    await bus.add_rule(DENIED)
    ids = [(await bus.publish("a.b", "x" * 4_000, from_="guest")).message_id for _ in range(4)]
    letters = await bus.dead_letters("a.b")
    assert [letter.id for letter in letters] == ids
    assert [letter.is_payload_dropped for letter in letters] == [True, True, False, False]
    assert letters[0].envelope is not None
    assert (letters[0].envelope.payload, letters[0].envelope.from_, letters[0].refused) == (
        None,
        "guest",
        "access_denied",
    )
    assert letters[0].reason.startswith("access denied")
    assert sum(path.stat().st_size for path in (house.mailbox("a.b").path / "failed").iterdir()) <= 10_000
    assert counted_letters(house.root, hash_of("a.b")) == letters_on_disk(house.root, hash_of("a.b"))
    assert [id_ for record in of_type(house.root, "bus.trimmed") for id_ in record.decoded_body()["ids"]] == ids[:2]


async def test_letters_without_payload_are_deleted_when_they_still_take_too_much_room(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxBytes=1_500))
    for number in range(10):
        await bus.publish("no.where", f"{number}" * 300, from_="c")
    refused, size, _failed, _failed_bytes = counted_letters(house.root, "unrouted")
    assert 1 <= refused < 10
    assert size <= 1_500
    assert counted_letters(house.root, "unrouted") == letters_on_disk(house.root, "unrouted")
    assert unrouted(house.root)[-1]["envelope"]["createdAt"]


async def test_letter_without_payload_is_not_requeued(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxBytes=1_000))
    message_id = (await bus.publish("late.one", "x" * 2_000, from_="c")).message_id
    await bus.register_endpoint("late.one")
    with pytest.raises(PosthouseError) as refused:
        await bus.requeue("late.one", message_id)
    assert refused.value.code == "dead_letter_trimmed"
    assert await bus.read_inbox("late.one", 10) == []


async def fail(bus: Bus, count: int, subject: str = "a.b") -> None:
    """Leave dead letters of messages whose handler failed."""
    await bus.register_endpoint(subject)
    unsubscribe = await bus.subscribe(subject, Recorder(fails=True))
    for number in range(count):
        assert (await bus.publish(subject, number, from_="c")).delivered_to == 1
        await settled(bus, subject)
    await unsubscribe()


async def test_letters_of_failed_handlers_are_kept_and_the_endpoint_refuses_new_mail(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=3))
    await fail(bus, 3)
    refused = await bus.publish("a.b", "one more", from_="c")
    assert reasons(refused) == ["backpressure"]
    assert refused.rejected[0].text == "backpressure: dead letters full (3/3)"
    await bus.sweep()
    assert [letter["envelope"]["payload"] for letter in house.mailbox("a.b").failed] == [0, 1, 2]
    assert (await bus.publish("no.where", 1, from_="c")).rejected == ()


async def test_bytes_of_failed_letters_refuse_new_mail_too(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxBytes=300))  # a letter with a frame of the handler is larger
    await fail(bus, 1)
    assert reasons(await bus.publish("a.b", 1, from_="c")) == ["backpressure"]
    assert len(house.mailbox("a.b").failed) == 1


async def test_refused_messages_do_not_make_an_endpoint_refuse_mail(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await bus.register_endpoint("a.b")
    await bus.add_rule(DENIED)
    for number in range(6):
        await bus.publish("a.b", number, from_="guest")
    assert (await bus.publish("a.b", 1, from_="c")).delivered_to == 1


async def test_full_endpoint_takes_its_own_letters_back_and_then_new_mail(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await fail(bus, 2)
    first, _second = await bus.dead_letters("a.b")
    assert (await bus.requeue("a.b", first.id)).delivered_to == 1
    assert (await bus.publish("a.b", "new", from_="c")).delivered_to == 1
    assert counted_letters(house.root, hash_of("a.b")) == letters_on_disk(house.root, hash_of("a.b"))


async def test_purge_makes_room_for_mail(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await fail(bus, 2)
    house.clock.advance(31 * 86_400)
    assert await bus.purge() == 2
    assert (await bus.publish("a.b", "new", from_="c")).delivered_to == 1
    assert counted_letters(house.root, hash_of("a.b")) == (0, 0, 0, 0)


async def test_letters_removed_by_another_program_make_room_after_a_sweep(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await fail(bus, 2)
    for path in (house.mailbox("a.b").path / "failed").iterdir():
        path.unlink()
    await bus.sweep()
    assert (await bus.publish("a.b", "new", from_="c")).delivered_to == 1


async def test_bound_in_config_json_takes_effect_on_an_open_bus(house: House, bus: Bus) -> None:
    for number in range(4):
        await bus.publish("no.where", number, from_="c")
    (house.root / "config.json").write_text('{"reliability": {"deadLetters": {"maxLetters": 2}}}')
    await eventually(lambda: len(unrouted(house.root)), lambda count: count == 2)
    assert counted_letters(house.root, "unrouted") == letters_on_disk(house.root, "unrouted")


async def test_disabled_bound_keeps_everything(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=1, enabled=False))
    await fail(bus, 2)
    await bus.publish("no.where", 1, from_="c")
    await bus.publish("no.where", 2, from_="c")
    assert len(unrouted(house.root)) == 2
    assert (await bus.publish("a.b", 1, from_="c")).delivered_to == 1


async def test_letters_of_an_unregistered_endpoint_count_for_unrouted(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await fail(bus, 2)
    await bus.add_rule(DENIED)
    await bus.publish("a.b", 1, from_="guest")
    first, *_ = await bus.dead_letters("a.b")
    await bus.requeue("a.b", first.id)
    await bus.unregister_endpoint("a.b", force=True)
    assert counted_letters(house.root, "unrouted") == letters_on_disk(house.root, "unrouted")
    assert counted_letters(house.root, "unrouted")[::2] == (1, 2)


async def test_lost_database_counts_the_letters_from_the_files(house: House) -> None:
    bus = await house.bus(reliability=bounded(maxLetters=2))
    await fail(bus, 2)
    await bus.publish("no.where", 1, from_="c")
    await bus.close()
    for path in house.root.glob("bus.db*"):
        path.unlink()
    bus = await house.bus(reliability=bounded(maxLetters=2))
    for hash_ in (hash_of("a.b"), "unrouted"):
        assert counted_letters(house.root, hash_) == letters_on_disk(house.root, hash_)
    assert reasons(await bus.publish("a.b", 1, from_="c")) == ["backpressure"]


async def test_recover_counts_letters_that_other_programs_added_or_removed(house: House, bus: Bus) -> None:
    await fail(bus, 2)
    first, second = (house.mailbox("a.b").path / "failed" / name for name in house.mailbox("a.b").names("failed"))
    second.with_name("01ARZ3NDEKTSV4RRFFQ69G5FAV").write_bytes(second.read_bytes())
    first.unlink()
    second.write_bytes(second.read_bytes() + b"   ")
    await bus.session.housekeeping.reconcile()
    assert counted_letters(house.root, hash_of("a.b")) == letters_on_disk(house.root, hash_of("a.b"))
    assert counted_letters(house.root, hash_of("a.b"))[2] == 2


async def refuse_three(bus: Bus) -> None:
    for number in range(3):
        await bus.publish("no.where", f"{number}" * 2_000, from_="c")
    await bus.sweep()


async def test_kill_at_any_step_of_dropping_letters_is_repaired_by_the_next_process(house: House) -> None:
    house.clock = system_clock()  # type: ignore[assignment]
    bus = await house.bus()
    (house.root / "config.json").write_text('{"reliability": {"deadLetters": {"maxLetters": 2, "maxBytes": 4000}}}')
    for number in range(2):
        await bus.publish("no.where", number, from_="c")
    await bus.close()
    steps = await asyncio.to_thread(killed_at_every_step, house.root, refuse_three)
    assert len(steps) > 8
    for step in steps:
        root = house.root.with_name(f"step{step}")
        async with Bus(root) as repaired:
            await repaired.sweep()
            found = letters_on_disk(root, "unrouted")
            assert counted_letters(root, "unrouted") == found, step
            assert found[0] == 2
            assert found[1] <= 4_000
            assert (await repaired.metrics()).by_status == {"dlq": 2}, step
            await repaired.rebuild_index()
            assert (await repaired.metrics()).by_status == {"dlq": 2}
