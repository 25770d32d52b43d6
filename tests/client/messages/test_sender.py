from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Client, Pins
from posthouse.keys import NodeKey
from posthouse.model.budget import MeshBudget
from posthouse.model.errors import PosthouseError, Refused, Transient
from posthouse.relay.messages.settings import DeliverySettings
from tests.client.hostile import Peer, lying_relay
from tests.client.house import QUICK, House, open_house
from tests.client.messages.pair import bodies, opened, pair, some


async def test_direct_message_is_sealed_and_its_reader_opens_it(house: House) -> None:
    two = pair(house)
    sent = await two.alice.send(two.bob.key.node, "for your eyes")
    stored = (await two.alice.get(sent.id)).event
    assert stored.value("enc") == "box" and "eyes" not in stored.content
    async with opened(two.bob) as box:
        (delivery,) = await some(box, 1)
    assert (delivery.body, delivery.sender, delivery.topic) == ("for your eyes", two.alice.key.node, None)
    assert delivery.client_message_id == sent.client_message_id


async def test_direct_message_is_in_the_clear_only_on_request(house: House) -> None:
    two = pair(house)
    sent = await two.alice.send(two.bob.key.node, "postcard", is_sealed=False)
    assert (await two.bob.get(sent.id)).event.content == "postcard"


async def test_every_option_of_a_message_arrives(house: House) -> None:
    two = pair(house)
    first = await two.alice.send(two.bob.key.node, "question")
    budget = MeshBudget(hop_count=1, max_hops=9, call_budget_remaining=5, ttl=2_000_000_000_000)
    meta = {"usage": {"model": "m", "input_tokens": 1, "output_tokens": 2, "cost_usd": 0.5}}
    await two.alice.send(
        two.bob.key.node,
        "again",
        client_message_id="c-2",
        reply_to=first.id,
        priority="now",
        meta=meta,
        budget=budget,
        mentions=[two.bob.key.node],
    )
    async with opened(two.bob) as box:
        message = (await some(box, 2))[1]
    read = message.message
    assert (read.client_message_id, read.reply_to, read.priority.value) == ("c-2", first.id, "now")
    assert (message.meta, read.budget, read.mentions) == (meta, budget, (two.bob.key.node,))


async def test_agents_on_both_sides_arrive_with_a_message(house: House) -> None:
    two = pair(house)
    sent = await two.alice.send(two.bob.key.node, "hi", client_message_id="c-1", from_agent="claude", to_agent="codex")
    other = await two.alice.send(two.bob.key.node, "hi", client_message_id="c-1", from_agent="gemini", to_agent="codex")
    again = await two.alice.send(two.bob.key.node, "hi", client_message_id="c-1", from_agent="claude", to_agent="codex")
    assert sent.id != other.id and (again.id, again.duplicate) == (sent.id, True)
    async with opened(two.bob) as box:
        found = await some(box, 2)
    assert [(each.from_agent, each.to_agent, each.body) for each in found] == [
        ("claude", "codex", "hi"),
        ("gemini", "codex", "hi"),
    ]
    assert (await two.alice.message(sent.id)).from_agent == "claude"


async def test_a_message_for_an_impossible_agent_is_refused_before_it_is_sent(house: House) -> None:
    two = pair(house)
    await two.alice.meshes.create_topic("main", "news")
    with pytest.raises(Refused, match="'Claude'"):
        await two.alice.send(two.bob.key.node, "hi", to_agent="Claude")
    with pytest.raises(Refused, match="to_agent"):
        await two.alice.send("#news", "hi", to_agent="claude")
    with pytest.raises(Refused, match="'a/b'"):
        await two.alice.send(two.bob.key.node, "hi", from_agent="a/b")


async def test_same_request_of_another_process_is_the_same_message(house: House) -> None:
    two = pair(house)
    options: dict[str, Any] = {"client_message_id": "c-1", "from_agent": "claude", "to_agent": "codex"}
    first = await two.alice.send(two.bob.key.node, "hi", **options)
    other = house.client(two.alice.key)
    again = await other.send(two.bob.key.node, "hi", **options)
    assert (again.id, again.duplicate) == (first.id, True) and again.event.id != first.id
    async with opened(two.bob) as box:
        assert bodies(await some(box, 1)) == ["hi"]
    with pytest.raises(Refused) as conflict:
        await house.client(two.alice.key).send(two.bob.key.node, "ho", **options)
    assert conflict.value.code == "idempotency_key_reused"


async def test_sealed_bodies_are_equal_only_for_the_same_request(house: House) -> None:
    two = pair(house)
    variants: list[dict[str, Any]] = [
        {},
        {"client_message_id": "c-2"},
        {"from_agent": "claude"},
        {"to_agent": "claude"},
        {"mesh": "lab"},
    ]
    made = [
        await two.alice.compose(two.bob.key.node, "hi", **({"client_message_id": "c-1"} | variant))
        for variant in [*variants, {}]
    ]
    assert made[0].content == made[-1].content
    assert len({event.content for event in made}) == len(variants)


async def test_topic_message_reaches_the_subscribers_of_the_topic(house: House) -> None:
    two = pair(house)
    await two.alice.meshes.create_topic("main", "alerts.disk")
    await two.bob.meshes.subscribe("main", "alerts.*")
    sent = await two.alice.send("#alerts.disk", "full")
    async with opened(two.bob) as box:
        (delivery,) = await some(box, 1)
    assert (delivery.id, delivery.topic, delivery.body) == (sent.id, "alerts.disk", "full")


async def test_repeated_request_sends_the_same_event_and_a_different_one_is_refused(house: House) -> None:
    two = pair(house)
    node = two.bob.key.node
    first = await two.alice.send(node, "once", client_message_id="c-1")
    second = await two.alice.send(node, "once", client_message_id="c-1")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (second.id, second.seq, second.event) == (first.id, first.seq, first.event)
    with pytest.raises(Refused) as refused:
        await two.alice.send(node, "twice", client_message_id="c-1")
    assert refused.value.code == "idempotency_key_reused"
    assert len(refused.value.fields["fingerprint_prefix"]) == 16


async def test_composed_message_can_be_sent_by_another_process(house: House) -> None:
    two = pair(house)
    event = await two.alice.compose(two.bob.key.node, "kept", client_message_id="c-1")
    first = await two.alice.send_event(event)
    await two.alice.close()
    second = await house.client(two.alice.key).send_event(event)
    assert (first.duplicate, second.duplicate, second.id) == (False, True, event.id)


async def test_message_sent_while_the_relay_is_down_arrives_once_with_the_same_bytes(house: House) -> None:
    two = pair(house)
    await two.alice.connect()
    await house.down()
    sending = asyncio.create_task(two.alice.send(two.bob.key.node, "patience", client_message_id="c-1"))
    await asyncio.sleep(0)
    await house.up()
    sent = await sending
    assert (await two.alice.send(two.bob.key.node, "patience", client_message_id="c-1")).id == sent.id
    async with opened(two.bob) as box:
        assert bodies(await some(box, 1)) == ["patience"]
        assert box.waiting == 1


async def test_lost_answer_makes_the_client_send_the_same_bytes_again() -> None:
    seen: list[str] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        event = (await peer.receive())[1]
        seen.append(str(event))
        if len(seen) > 1:
            answer = {"id": event["id"], "seq": 7, "duplicate": True, "client_message_id": "c", "not_queued": []}
            await peer.send("OK", event["id"], True, answer)
            await peer.await_end()

    key = NodeKey.generate()
    async with lying_relay(script) as url, Client(url, key, pins=Pins(None), options=QUICK) as client:
        sent = await client.send(NodeKey.generate().node, "sealed", client_message_id="c")
    assert sent.duplicate
    assert len(seen) == 2 and seen[0] == seen[1]


@pytest.mark.parametrize(
    ("to", "options", "code"),
    [
        ("#no such topic", {}, "topic_invalid"),
        ("#missing", {}, "topic_unknown"),
        ("nobody", {}, "member_name_unknown"),
        ("bob", {"client_message_id": ""}, "id_invalid"),
        ("bob", {"client_message_id": "a\nb"}, "id_invalid"),
        ("bob", {"priority": "yesterday"}, "value_invalid"),
        ("bob", {"meta": [1]}, "value_invalid"),
        ("bob", {"reply_to": "abc"}, "id_invalid"),
    ],
)
async def test_invalid_request_is_refused(house: House, to: str, options: dict[str, object], code: str) -> None:
    two = pair(house)
    target = two.bob.key.node if to == "bob" else to
    with pytest.raises(PosthouseError) as refused:
        await two.alice.send(target, "hello", **options)  # type: ignore[arg-type]
    assert refused.value.code == code


async def test_body_above_the_limit_is_refused_before_it_is_sealed(house: House) -> None:
    two = pair(house)
    await two.alice.send(two.bob.key.node, "x" * 48 * 1024)
    with pytest.raises(Refused) as refused:
        await two.alice.send(two.bob.key.node, "x" * (48 * 1024 + 1))
    assert refused.value.code == "body_too_large"


async def test_full_queue_is_refused_at_once_and_delays_no_other_message(tmp_path: Path) -> None:
    async with open_house(tmp_path, deliveries=DeliverySettings(queue_max=2)) as house:
        two, carol = pair(house), house.client()
        await two.send_all("1", "2")
        with pytest.raises(Transient) as refused:
            await two.alice.send(two.bob.key.node, "3", client_message_id="c-3")
        assert refused.value.code == "queue_full"
        assert refused.value.fields["recipient"] == two.bob.key.node
        assert not (await two.alice.send(carol.key.node, "other queue")).duplicate
        async with opened(two.bob) as box:
            await box.confirm(*await some(box, 2))
        assert not (await two.alice.send(two.bob.key.node, "3", client_message_id="c-3")).duplicate


async def test_submitted_list_is_answered_per_event_and_never_retried(house: House) -> None:
    two = pair(house)
    good = [await two.alice.compose(two.bob.key.node, str(number)) for number in range(3)]
    missing = await two.alice.compose("#missing", "nowhere")
    answers = await two.alice.submit([good[0], missing, *good[1:]])
    assert [getattr(answer, "code", "ok") for answer in answers] == ["ok", "topic_unknown", "ok", "ok"]
    again = await two.alice.submit(good)
    assert [getattr(answer, "duplicate", None) for answer in again] == [True] * 3


async def test_submitted_event_behind_a_refused_one_of_its_destination_is_refused(house: House) -> None:
    two = pair(house)
    used = await two.alice.compose(two.bob.key.node, "one", client_message_id="c")
    other = await two.alice.compose(two.bob.key.node, "two", client_message_id="c")
    rest = await two.alice.compose(two.bob.key.node, "three")
    answers = await two.alice.submit([used, other, rest])
    assert [getattr(answer, "code", "ok") for answer in answers] == ["ok", "idempotency_key_reused", "earlier_refused"]


async def test_submitted_list_fails_when_its_connection_is_lost(house: House) -> None:
    two = pair(house)
    event = await two.alice.compose(two.bob.key.node, "perhaps")
    await two.alice.connect()
    await house.down()
    answers = await two.alice.submit([event])
    assert [getattr(answer, "code", "ok") for answer in answers] == ["relay_unreachable"]
