from __future__ import annotations

import asyncio
import threading

from posthouse import Bus
from posthouse.model.envelope import Envelope
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import DEADLINE_S, bounded, eventually

WEEK_S = 7 * 86_400  # the lifetime of a message


async def test_handled_message_leaves_nothing_in_the_mailbox(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", 1, from_="c")
    await got.wait(1)
    await eventually(lambda: house.mailbox("a.b").depth, lambda depth: depth == 0)
    assert house.mailbox("a.b").failed == []


async def test_message_that_is_being_handled_is_in_cur(house: House, bus: Bus) -> None:
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    await bus.publish("a.b", 1, from_="c")
    await held.wait(1)
    assert (len(house.mailbox("a.b").cur), house.mailbox("a.b").new) == (1, [])
    held.release.set()


async def test_backlog_is_delivered_oldest_first_before_later_messages(bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    for number in range(50):
        await bus.publish("a.b", number, from_="c")
    await bus.subscribe("a.b", got)
    for number in range(50, 60):
        await bus.publish("a.b", number, from_="c")
    assert await got.wait(60) == list(range(60))


async def test_wildcard_subscriber_gets_the_backlog_of_every_endpoint_it_matches(bus: Bus) -> None:
    got = Recorder()
    for subject in ("team.a", "team.b", "other.c"):
        await bus.register_endpoint(subject)
        await bus.publish(subject, subject, from_="c")
    await bus.subscribe("team.>", got)
    assert sorted(await got.wait(2)) == ["team.a", "team.b"]
    await bus.publish("team.b", "later", from_="c")
    assert (await got.wait(3))[2] == "later"
    assert "other.c" not in got.payloads


async def test_subscription_before_the_endpoint_serves_it_once_registered(bus: Bus) -> None:
    got = Recorder()
    await bus.subscribe("late.*", got)
    await bus.register_endpoint("late.one")
    await bus.publish("late.one", "hello", from_="c")
    assert await got.wait(1) == ["hello"]


async def test_all_matching_handlers_get_the_message(bus: Bus) -> None:
    literal, star, rest, other = Recorder(), Recorder(), Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    for pattern, handler in (("a.b", literal), ("a.*", star), (">", rest), ("a.c", other)):
        await bus.subscribe(pattern, handler)
    await bus.publish("a.b", 1, from_="c")
    for handler in (literal, star, rest):
        assert await handler.wait(1) == [1]
    assert other.payloads == []


async def test_failing_handler_does_not_keep_other_handlers_from_the_message(house: House, bus: Bus) -> None:
    before, failing, after = Recorder(), Recorder(fails=True), Recorder()
    await bus.register_endpoint("a.b")
    for handler in (before, failing, after):
        await bus.subscribe("a.b", handler)
    result = await bus.publish("a.b", {"n": 1}, from_="c")
    await asyncio.gather(before.wait(1), failing.wait(1), after.wait(1))
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert letter["envelope"]["id"] == result.message_id
    assert "this handler fails" in letter["reason"]
    assert letter["failedAt"].endswith("Z")
    assert house.mailbox("a.b").depth == 0


async def test_failed_message_does_not_stop_the_messages_behind_it(bus: Bus) -> None:
    got = Recorder()

    async def picky(envelope: Envelope) -> None:
        if envelope.payload == 1:
            raise ValueError("I do not like this one")
        await got(envelope)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", picky)
    for number in range(4):
        await bus.publish("a.b", number, from_="c")
    assert await got.wait(3) == [0, 2, 3]


async def test_handler_that_raises_a_cancellation_counts_as_failed(house: House, bus: Bus) -> None:
    async def confused(_envelope: Envelope) -> None:
        raise asyncio.CancelledError

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", confused)
    await bus.publish("a.b", 1, from_="c")
    await bus.publish("a.b", 2, from_="c")
    letters = await eventually(lambda: house.mailbox("a.b").failed, lambda found: len(found) == 2)
    assert [letter["envelope"]["payload"] for letter in letters] == [1, 2]


async def test_sync_handler_runs_in_a_thread_and_may_block(bus: Bus) -> None:
    release, threads = threading.Event(), list[int]()

    def handler(_envelope: Envelope) -> None:
        threads.append(threading.get_ident())
        assert release.wait(DEADLINE_S)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", 1, from_="c")
    await eventually(lambda: threads)
    assert threads[0] != threading.get_ident()
    release.set()


async def test_messages_of_one_endpoint_are_handled_one_at_a_time(bus: Bus) -> None:
    inside = most = done = 0

    async def handler(_envelope: Envelope) -> None:
        nonlocal inside, most, done
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        done += 1

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(30)))
    await eventually(lambda: done, lambda count: count == 30)
    assert most == 1


async def test_hanging_handler_blocks_neither_publish_nor_other_endpoints(bus: Bus) -> None:
    hanging, quick = Recorder(holds=True), Recorder()
    for subject, handler in (("slow.one", hanging), ("quick.one", quick)):
        await bus.register_endpoint(subject)
        await bus.subscribe(subject, handler)
    await bus.publish("slow.one", "hang", from_="c")
    await hanging.wait(1)
    for number in range(40):
        for subject in ("slow.one", "quick.one"):
            result = await asyncio.wait_for(bus.publish(subject, number, from_="c"), 5)
            assert result.delivered_to == 1
    assert await quick.wait(40) == list(range(40))
    assert len(hanging.payloads) == 1
    hanging.release.set()
    assert await hanging.wait(41) == ["hang", *range(40)]


async def test_many_blocking_sync_handlers_do_not_starve_other_endpoints(bus: Bus) -> None:
    """More blocked endpoints than a default thread pool has threads must not stop one more sync handler."""
    release, reached = threading.Event(), threading.Event()
    blocked = 40
    for number in range(blocked):
        await bus.register_endpoint(f"block.n{number}")
    await bus.register_endpoint("free.one")
    await bus.subscribe("block.*", lambda _envelope: release.wait(DEADLINE_S * 2))
    await bus.subscribe("free.one", lambda _envelope: reached.set())
    try:
        for number in range(blocked):
            await bus.publish(f"block.n{number}", 1, from_=f"c{number}")
        await bus.publish("free.one", 1, from_="c")
        assert await eventually(reached.is_set)
    finally:
        release.set()


async def test_handler_that_exceeds_its_time_counts_as_failed_and_the_endpoint_goes_on(house: House) -> None:
    bus = await house.bus(handler_timeout_s=0.1)
    got = Recorder()

    async def handler(envelope: Envelope) -> None:
        if envelope.payload == "hang":
            await asyncio.Event().wait()
        await got(envelope)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", "hang", from_="c")
    await bus.publish("a.b", "next", from_="c")
    assert await got.wait(1) == ["next"]
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert letter["envelope"]["payload"] == "hang"


async def test_endpoint_stays_paused_until_a_late_sync_handler_has_ended(house: House) -> None:
    bus = await house.bus(handler_timeout_s=0.1)
    release = threading.Event()
    seen: list[object] = []

    def handler(envelope: Envelope) -> None:
        seen.append(envelope.payload)
        if envelope.payload == "hang":
            assert release.wait(DEADLINE_S)
        seen.append(f"end of {envelope.payload}")

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", "hang", from_="c")
    await bus.publish("a.b", "next", from_="c")
    await eventually(lambda: house.mailbox("a.b").failed)
    assert seen == ["hang"]
    release.set()
    await eventually(lambda: len(seen) == 4)
    assert seen == ["hang", "end of hang", "next", "end of next"]


async def test_expired_mail_is_never_delivered_late(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "old", from_="c")
    house.clock.advance(WEEK_S + 1)
    await bus.publish("a.b", "fresh", from_="c")
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["fresh"]
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert (letter["reason"], letter["envelope"]["payload"]) == ("message expired (TTL)", "old")


async def test_mail_that_expires_while_it_waits_behind_another_is_not_delivered(house: House, bus: Bus) -> None:
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    await bus.publish("a.b", "first", from_="c")
    await bus.publish("a.b", "second", from_="c")
    await held.wait(1)
    house.clock.advance(WEEK_S + 1)
    held.release.set()
    (letter,) = await eventually(lambda: house.mailbox("a.b").failed)
    assert (letter["reason"], letter["envelope"]["payload"]) == ("message expired (TTL)", "second")
    assert held.payloads == ["first"]


async def test_mail_is_still_delivered_in_its_last_millisecond(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "just in time", from_="c")
    house.clock.advance(WEEK_S)
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["just in time"]


async def test_unsubscribed_handler_gets_nothing_more_and_mail_waits(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    unsubscribe = await bus.subscribe("a.b", got)
    await bus.publish("a.b", 1, from_="c")
    await got.wait(1)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    await unsubscribe()
    await bus.publish("a.b", 2, from_="c")
    assert [envelope.payload for envelope in await bus.read_inbox("a.b", 10)] == [2]
    assert got.payloads == [1]
    again = Recorder()
    await bus.subscribe("a.b", again)
    assert await again.wait(1) == [2]


async def test_unsubscribing_one_handler_leaves_the_other(bus: Bus) -> None:
    one, two = Recorder(), Recorder()
    await bus.register_endpoint("a.b")
    unsubscribe = await bus.subscribe("a.b", one)
    await bus.subscribe("a.b", two)
    await unsubscribe()
    await bus.publish("a.b", 1, from_="c")
    assert await two.wait(1) == [1]
    assert one.payloads == []
    assert [item.pattern for item in await bus.list_subscriptions()] == ["a.b"]


async def test_order_of_concurrent_publishers_is_the_order_of_their_returns(bus: Bus) -> None:
    """A publish that returned before another began is handled before it, also across processes."""
    got = Recorder()
    began: dict[str, int] = {}
    returned: dict[str, int] = {}
    ticks = iter(range(10_000))
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)

    async def publisher(name: str) -> None:
        for number in range(25):
            key = f"{name}-{number}"
            began[key] = next(ticks)
            await bus.publish("a.b", key, from_=name)
            returned[key] = next(ticks)

    await asyncio.gather(*(publisher(f"p{n}") for n in range(16)))
    order = await got.wait(400)
    latest_begin = -1
    for key in order:
        assert returned[key] > latest_begin, f"{key} returned before a message handled earlier began"
        latest_begin = max(latest_begin, began[key])


async def test_handler_may_publish_and_subscribe(bus: Bus) -> None:
    done = asyncio.Event()
    await bus.register_endpoint("a.b")
    await bus.register_endpoint("a.c")

    async def second(_envelope: Envelope) -> None:
        done.set()

    async def first(_envelope: Envelope) -> None:
        await bus.subscribe("a.c", second)
        await bus.publish("a.c", 1, from_="a.b")

    await bus.subscribe("a.b", first)
    await bus.publish("a.b", 1, from_="c")
    await bounded(done)
