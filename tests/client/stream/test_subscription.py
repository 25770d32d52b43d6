from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from posthouse.client import Client, Published, Subscription
from posthouse.model.errors import Refused
from tests.client.house import QUICK, House
from tests.client.waiting import take, until


async def publish(client: Client, *contents: str, kind: int = 1) -> list[Published]:
    answers = await client.publish_many([client.sign(content, kind=kind) for content in contents])
    return [answer for answer in answers if isinstance(answer, Published)]


async def contents(subscription: Subscription, count: int) -> list[str]:
    return [received.event.content for received in await take(subscription, count)]


async def test_stored_events_come_first_then_live_ones(house: House) -> None:
    client = house.client()
    await publish(client, "a", "b")
    subscription = await client.subscribe({"kinds": [1]})
    assert [received.event.content async for received in subscription.stored()] == ["a", "b"]
    await publish(client, "c")
    assert await contents(subscription, 1) == ["c"]


async def test_limit_starts_with_the_newest_stored_events(house: House) -> None:
    client = house.client()
    await publish(client, "a", "b", "c")
    subscription = await client.subscribe({"kinds": [1]}, limit=2)
    assert await contents(subscription, 2) == ["b", "c"]


async def test_cursor_of_a_received_event_continues_after_it_in_another_client(house: House) -> None:
    client = house.client()
    first = await client.subscribe({"kinds": [1]})
    await first.wait_live()
    await publish(client, "a", "b", "c")
    await take(first, 2)
    second = await house.client().subscribe({"kinds": [1]}, cursor=first.cursor)
    assert await contents(second, 1) == ["c"]


async def test_subscription_continues_after_a_restart_without_gap_or_duplicate(house: House) -> None:
    writer, reader = house.client(), house.client()
    subscription = await reader.subscribe({"kinds": [1]})
    await publish(writer, "a", "b")
    assert await contents(subscription, 2) == ["a", "b"]
    for restart in range(3):
        await house.down()
        await house.up()
        await publish(writer, f"after {restart}")
        assert await contents(subscription, 1) == [f"after {restart}"]


async def test_connection_lost_among_the_stored_events_leaves_no_gap(house: House) -> None:
    writer = house.client()
    await publish(writer, *(str(number) for number in range(2_000)))
    reader = house.client(options=replace(QUICK, buffer_events=100))
    subscription = await reader.subscribe({"kinds": [1]}, limit=500)
    first = await contents(subscription, 50)
    await house.down()
    await house.up()
    assert first + await contents(subscription, 450) == [str(number) for number in range(1_500, 2_000)]


async def test_slow_reader_gets_everything_in_order_within_its_bound(house: House) -> None:
    writer = house.client()
    reader = house.client(options=replace(QUICK, buffer_events=50))
    subscription = await reader.subscribe({"kinds": [1]})
    expected = [str(number) for number in range(1_000)]
    await publish(writer, *expected)
    await until(lambda: len(subscription._buffer) >= 50)
    got: list[str] = []
    for _ in expected:
        got += await contents(subscription, 1)
        assert len(subscription._buffer) <= 51  # the mark between stored and live takes a place
    assert got == expected


async def test_slow_reader_does_not_delay_others_of_the_same_client(house: House) -> None:
    client = house.client(options=replace(QUICK, buffer_events=5))
    idle = await client.subscribe({"kinds": [1]})
    eager = await client.subscribe({"kinds": [1]})
    await publish(client, *(str(number) for number in range(20)))
    assert await contents(eager, 20) == [str(number) for number in range(20)]
    assert await contents(idle, 20) == [str(number) for number in range(20)]


async def test_ephemeral_events_reach_live_subscribers_only(house: House) -> None:
    client = house.client()
    await client.publish("nobody listens", kind=20_102)
    subscription = await client.subscribe({"kinds": [20_102]})
    await subscription.wait_live()
    await client.publish("somebody listens", kind=20_102)
    (received,) = await take(subscription, 1)
    assert (received.event.content, received.seq) == ("somebody listens", None)


async def test_several_filters_match_any_of_them_and_each_event_comes_once(house: House) -> None:
    client = house.client()
    await publish(client, "one", kind=1)
    await publish(client, "two", kind=2)
    await publish(client, "three", kind=3)
    subscription = await client.subscribe({"kinds": [1]}, {"kinds": [1, 3]})
    assert await contents(subscription, 2) == ["one", "three"]


async def test_refused_subscription_raises_the_relays_error(house: House) -> None:
    client = house.client()
    subscription = await client.subscribe({"kinds": [1]}, cursor="not a cursor")
    with pytest.raises(Refused) as refused:
        await take(subscription, 1)
    assert refused.value.code == "cursor_invalid"


async def test_malformed_filter_is_refused_before_anything_is_sent(house: House) -> None:
    client = house.client()
    with pytest.raises(Refused) as refused:
        await client.subscribe({"kinds": []})
    assert refused.value.code == "filter_invalid"


async def test_closed_subscription_ends_its_reader_and_is_forgotten(house: House) -> None:
    client = house.client()
    subscription = await client.subscribe({"kinds": [1]})
    reading = asyncio.create_task(anext(subscription, None))
    await asyncio.sleep(0)
    subscription.close()
    assert await asyncio.wait_for(reading, 20) is None
    assert client.statistics()["subscriptions"] == 0


async def test_closing_the_client_ends_readers_without_an_error(house: House) -> None:
    client = house.client()
    subscription = await client.subscribe({"kinds": [1]})
    reading = asyncio.create_task(anext(subscription, None))
    await asyncio.sleep(0)
    await client.close()
    assert await asyncio.wait_for(reading, 20) is None
