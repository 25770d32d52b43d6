from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from posthouse.client import Client, Published
from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import write_command
from posthouse.client.stream.pending import PendingCommands
from posthouse.client.stream.publisher import Publisher
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, Refused, Transient
from posthouse.model.rate import Rate
from tests.client.house import QUICK, House, open_house
from tests.client.stream.test_pending import RecordingLink
from tests.client.waiting import until


async def test_published_event_is_answered_with_its_seq_and_can_be_read(house: House) -> None:
    client = house.client()
    published = await client.publish("hello", kind=1, tags=[("t", "greetings")])
    assert not published.duplicate
    stored = await client.get(published.event.id)
    assert (stored.event, stored.seq) == (published.event, published.seq)


async def test_sending_the_same_event_again_is_a_success_and_a_duplicate(house: House) -> None:
    client = house.client()
    event = client.sign("once", kind=1)
    first = await client.publish_event(event)
    second = await client.publish_event(event)
    assert (second.seq, second.duplicate) == (first.seq, True)


async def test_same_event_sent_twice_at_once_is_stored_once(house: House) -> None:
    client = house.client()
    event = client.sign("twice at once", kind=1)
    one, two = await asyncio.gather(client.publish_event(event), client.publish_event(event))
    assert one.seq == two.seq
    assert await client.count({"ids": [event.id]}) == 1


async def test_ephemeral_event_is_passed_on_without_a_seq(house: House) -> None:
    published = await house.client().publish("now", kind=20_102)
    assert published.seq is None


async def test_refusal_is_the_error_the_relay_raised(house: House) -> None:
    client = house.client()
    with pytest.raises(Refused) as refused:
        await client.publish("into nowhere", kind=1, mesh="nowhere")
    assert refused.value.code == "mesh_unknown"
    assert refused.value.fields["mesh"] == "nowhere"


async def test_publishes_of_one_loop_iteration_leave_in_one_frame(house: House) -> None:
    client = house.client()
    await client.connect()
    before = _frames(client)
    await asyncio.gather(*(client.publish(str(number), kind=1) for number in range(100)))
    assert _frames(client) - before == 1


async def test_events_keep_the_order_they_were_sent_in(house: House) -> None:
    client = house.client()
    events = [client.sign(str(number), kind=1) for number in range(1_500)]
    answers = [answer for answer in await client.publish_many(events) if isinstance(answer, Published)]
    assert [answer.event for answer in answers] == events
    seqs = [answer.seq or 0 for answer in answers]
    assert seqs == sorted(seqs)


async def test_refused_event_does_not_affect_the_others(house: House) -> None:
    client = house.client()
    events = [client.sign("good", kind=1), client.sign("bad", kind=1, mesh="nowhere"), client.sign("after", kind=1)]
    answers = await client.publish_many(events)
    assert [isinstance(answer, Published) for answer in answers] == [True, False, True]


async def test_event_behind_a_refused_one_of_its_destination_is_retried(house: House) -> None:
    client = house.client()
    meshless = [client.sign(str(number), kind=1, mesh="nowhere") for number in range(3)]
    answers = await client.publish_many(meshless)
    assert [answer.code for answer in answers if isinstance(answer, PosthouseError)] == ["mesh_unknown"] * 3


async def test_rate_limited_events_are_retried_until_accepted(tmp_path: Path) -> None:
    async with open_house(tmp_path, event_rate=Rate(200, 20)) as house:
        client = house.client()
        answers = await client.publish_many([client.sign(str(number), kind=1) for number in range(60)])
        seqs = [answer.seq or 0 for answer in answers if isinstance(answer, Published)]
        assert len(seqs) == 60
        assert seqs == sorted(seqs)


async def test_transient_refusal_is_raised_after_the_timeout(tmp_path: Path) -> None:
    async with open_house(tmp_path, event_rate=Rate(1, 1)) as house:
        client = house.client(options=replace(QUICK, publish_timeout_s=0.5))
        await client.publish("takes the only token", kind=1)
        with pytest.raises(Transient) as refused:
            await client.publish("too many", kind=1)
        assert refused.value.code == "rate_limited"


async def test_unanswered_events_are_bounded_and_publish_waits(house: House) -> None:
    client = house.client(options=replace(QUICK, in_flight_events=10))
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, client.statistics()["unanswered"])
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    try:
        answers = await client.publish_many([client.sign(str(number), kind=1) for number in range(200)])
    finally:
        watching.cancel()
    assert all(isinstance(answer, Published) for answer in answers)
    assert 0 < most <= 10


async def test_publish_does_not_overtake_those_that_wait_for_room() -> None:
    link, client = RecordingLink(), Client("http://127.0.0.1:1", NodeKey.generate())
    publisher = Publisher(PendingCommands(cast(Link, link)), client.key, replace(QUICK, in_flight_events=2))
    events = [client.sign(str(number), kind=1) for number in range(5)]
    tasks = [asyncio.create_task(publisher.publish(event)) for event in events[:4]]
    await until(lambda: len(link.sent) == 2)
    for event in events[:2]:
        link.ok(event.id)
    tasks.append(asyncio.create_task(publisher.publish(events[4])))  # runs between the two that wait
    await until(lambda: len(link.sent) == 4)
    for event in events[2:4]:
        link.ok(event.id)
    await until(lambda: len(link.sent) == 5)
    link.ok(events[4].id)
    await asyncio.gather(*tasks)
    assert link.sent == [write_command("EVENT", event) for event in events]


async def test_publish_survives_a_restart_of_the_relay_with_the_same_bytes(house: House) -> None:
    client = house.client()
    await client.publish("before", kind=1)
    await house.down()
    await until(lambda: not client.statistics()["is_up"])
    event = client.sign("while it is away", kind=1)
    sending = asyncio.create_task(client.publish_event(event))
    await asyncio.sleep(0)
    await house.up()
    published = await asyncio.wait_for(sending, 20)
    assert published.event == event
    assert client.statistics()["connections"] == 2


async def test_publish_to_a_stopped_relay_raises_relay_unreachable_after_the_timeout(house: House) -> None:
    client = house.client(options=replace(QUICK, publish_timeout_s=0.5))
    await client.connect()
    await house.down()
    with pytest.raises(Transient) as refused:
        await client.publish("nobody hears", kind=1)
    assert refused.value.code == "relay_unreachable"


async def test_first_connection_to_a_stopped_relay_fails_at_once(house: House) -> None:
    client = house.client()
    await house.down()
    with pytest.raises(Transient) as refused:
        await client.publish("nobody hears", kind=1)
    assert refused.value.code == "relay_unreachable"
    assert refused.value.spec.exit == 3


async def test_patient_client_waits_for_a_relay_that_starts_later(house: House) -> None:
    client = house.client()
    await house.down()
    connecting = asyncio.create_task(client.connect(is_patient=True))
    await asyncio.sleep(0)
    await house.up()
    await asyncio.wait_for(connecting, 20)
    assert client.statistics()["is_up"]


async def test_cancelled_publish_leaves_nothing_behind(house: House) -> None:
    client = house.client()
    await client.connect()
    sending = asyncio.create_task(client.publish("never mind", kind=1))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert client.statistics()["unanswered"] == 0


async def test_a_request_of_a_closed_client_fails_with_client_closed(house: House) -> None:
    client = house.client()
    await client.meshes.topics("main")
    await client.close()
    with pytest.raises(PosthouseError) as refused:
        await client.meshes.topics("main")
    assert refused.value.code == "client_closed"


async def test_closing_fails_open_publishes_with_client_closed(house: House) -> None:
    client = house.client()
    await client.connect()
    await house.down()
    sending = asyncio.create_task(client.publish("too late", kind=1))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(sending, 20)
    assert refused.value.code == "client_closed"


async def test_sealed_event_is_opened_by_its_readers_and_its_author_only(house: House) -> None:
    bob, carol, eve = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()
    alice = house.client()
    for readers in ([bob.node], [bob.node, carol.node]):
        published = await alice.publish("for two", kind=1, seal_for=readers)
        stored = await house.client(bob).get(published.event.id)
        assert "for two" not in stored.event.content
        assert house.client(bob).open(stored.event) == "for two"
        with pytest.raises(PosthouseError) as refused:
            house.client(eve).open(stored.event)
        assert refused.value.code == "sealed_unopened"
    box = await alice.publish("own copy", kind=1, seal_for=[bob.node])
    assert alice.open(box.event) == "own copy"


def _frames(client: object) -> int:
    connection = client._link._connection  # type: ignore[attr-defined]
    frames: int = connection.outgoing.frames
    return frames
