"""Concurrent publishes share signatures, with a relay that knows batch signatures and with one that does not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from posthouse.client import Client
from posthouse.client.trust.signing import draft_event, sign_drafts
from posthouse.keys import NodeKey, sign_native
from posthouse.model.errors import PosthouseError
from posthouse.model.event import AUTHENTICATION, Event, check_structure
from posthouse.relay import context
from tests.client.house import House


def as_native(event: Event, key: NodeKey) -> Event:
    return replace_sig(event, sign_native(key, event.canonical()))


def replace_sig(event: Event, sig: str) -> Event:
    return msgspec.structs.replace(event, sig=sig)


def sign_in_batch(client: Client, *contents: str) -> list[Event]:
    return sign_drafts(client.key, [client.signer.draft(1, content) for content in contents], 64)


async def stored(client: Client, event_id: str) -> Event:
    return (await client.query({"ids": [event_id]})).events[0].event


async def test_calls_of_one_iteration_share_a_signature(house: House) -> None:
    client = house.client()
    await client.connect()
    published = await asyncio.gather(*(client.publish(str(number), kind=1) for number in range(64)))
    assert [each.event.content for each in published] == [str(number) for number in range(64)]
    assert all(each.event.sig.startswith("b1.") for each in published)
    assert [each.seq for each in published] == sorted(each.seq or 0 for each in published)
    assert (await stored(house.client(), published[40].event.id)).sig == published[40].event.sig


async def test_lone_event_has_a_native_signature(house: House) -> None:
    client = house.client()
    for number in range(2):
        assert len((await client.publish(str(number), kind=1)).event.sig) == 128


async def test_events_of_two_meshes_have_two_signatures(house: House) -> None:
    client = house.client()
    await client.connect()
    drafts = [client.signer.draft(1, str(n), [("mesh", name)]) for n, name in enumerate(("a", "b", "a", "b", "c"))]
    events = sign_drafts(client.key, drafts, 64)
    assert [event.content for event in events] == ["0", "1", "2", "3", "4"]
    assert [event.sig.startswith("b1.") for event in events] == [True, True, True, True, False]


async def test_relay_that_announces_no_batches_gets_native_signatures(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = context.features_of
    monkeypatch.setattr(
        "posthouse.relay.stream.connection.features_of",
        lambda given: {name: value for name, value in features(given).items() if name != "batch_signatures"},
    )
    client = house.client()
    published = await asyncio.gather(*(client.publish(str(number), kind=1) for number in range(8)))
    assert {len(each.event.sig) for each in published} == {128}


async def test_order_of_calls_holds_between_new_and_signed_events(house: House) -> None:
    client = house.client()
    await client.connect()
    early = client.sign("2", kind=1)
    published = await asyncio.gather(
        client.publish("0", kind=1),
        client.publish("1", kind=1),
        client.publish_event(early),
        client.publish("3", kind=1),
    )
    seqs = [each.seq or 0 for each in published]
    assert seqs == sorted(seqs)


async def test_same_event_in_two_forms_is_a_duplicate(house: House) -> None:
    client = house.client()
    await client.connect()
    batch = sign_in_batch(client, "a", "b")
    assert all(event.sig.startswith("b1.") for event in batch)
    first, _ = await client.publish_many(batch)
    assert not isinstance(first, PosthouseError)
    assert not first.duplicate
    again = await client.publish_event(as_native(batch[0], client.key))
    assert (again.duplicate, again.seq) == (True, first.seq)


async def test_refused_event_leaves_the_others_of_its_batch_alone(house: House) -> None:
    client = house.client()
    await client.connect()
    events = sign_in_batch(client, "a", "b", "c")
    forged = replace_sig(events[1], events[0].sig)
    answers = await client.publish_many([events[0], forged, events[2]])
    assert isinstance(answers[1], PosthouseError)
    assert answers[1].code == "signature_invalid"
    assert not isinstance(answers[0], PosthouseError)
    assert not isinstance(answers[2], PosthouseError)


async def test_unknown_form_is_named_and_not_called_forged(house: House) -> None:
    client = house.client()
    await client.connect()
    event = client.sign("a", kind=1)
    with pytest.raises(PosthouseError) as refusal:
        await client.publish_event(replace_sig(event, "b2." + "A" * 131))
    assert refusal.value.code == "signature_form_unknown"


async def test_caller_that_gives_up_before_the_signature_leaves_no_room_taken(house: House) -> None:
    client = house.client()
    await client.connect()
    given_up = asyncio.create_task(client.publish("given up", kind=1))
    await asyncio.sleep(0)
    given_up.cancel()
    await client.publish("kept", kind=1)
    assert client.statistics()["unanswered"] == 0


def test_proof_of_a_login_has_no_batch_form() -> None:
    key = NodeKey.generate()
    drafts = [draft_event(key, AUTHENTICATION, "", (("relay", key.node), ("challenge", str(n))), n) for n in range(2)]
    for event in sign_drafts(key, drafts, 64):
        with pytest.raises(PosthouseError) as refusal:
            check_structure(event)
        assert refusal.value.code == "event_sig_form"
