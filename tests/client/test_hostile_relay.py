from __future__ import annotations

from typing import Any

import msgspec
import pytest

from posthouse.client import Client, ClientOptions, Pins, sign_event
from posthouse.keys import NodeKey
from posthouse.model.errors import Fatal, PosthouseError, Refused
from tests.client.hostile import Peer, lying_relay
from tests.client.waiting import take

ALICE = NodeKey(b"A" * 32)
TRUE = msgspec.to_builtins(sign_event(ALICE, 1, "I said this", [], 1))
QUICK = ClientOptions(reconnect_most_s=0.05)


def client_of(url: str, **options: Any) -> Client:
    return Client(url, NodeKey.generate(), pins=Pins(None), options=ClientOptions(reconnect_most_s=0.05, **options))


async def read_one(event: dict[str, Any], **options: Any) -> str:
    """Return the content of an event that a relay sends, if the client accepts it."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        _, sub, *_ = await peer.receive()
        await peer.send("EVENT", sub, event, 1)
        await peer.await_end()

    async with lying_relay(script) as url, client_of(url, **options) as client:
        subscription = await client.subscribe({"kinds": [1]})
        (received,) = await take(subscription, 1)
        return received.event.content


async def test_control_valid_event_is_accepted() -> None:
    assert await read_one(TRUE) == "I said this"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"content": "I said that"}, "event_id_mismatch"),
        ({"sig": "0" * 128}, "signature_invalid"),
        ({"pubkey": NodeKey(b"B" * 32).node}, "event_id_mismatch"),
        ({"kind": 2}, "event_id_mismatch"),
        ({"more": 1}, "event_field_unknown"),
    ],
)
async def test_forged_event_ends_the_subscription_with_its_error(change: dict[str, Any], code: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        await read_one(TRUE | change)
    assert refused.value.code == code


async def test_verification_can_be_turned_off() -> None:
    assert await read_one(TRUE | {"content": "I said that"}, is_verifying=False) == "I said that"


async def test_valid_event_that_matches_no_filter_is_refused() -> None:
    other = msgspec.to_builtins(sign_event(ALICE, 2, "another matter", [], 1))
    with pytest.raises(Fatal) as refused:
        await read_one(other)
    assert refused.value.code == "answer_invalid"


async def test_event_sent_twice_reaches_the_reader_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        _, sub, *_ = await peer.receive()
        second = msgspec.to_builtins(sign_event(ALICE, 1, "second", [], 2))
        for event, seq in ((TRUE, 1), (TRUE, 1), (second, 2)):
            await peer.send("EVENT", sub, event, seq)
        await peer.await_end()

    async with lying_relay(script) as url, client_of(url) as client:
        subscription = await client.subscribe({"kinds": [1]})
        assert [each.event.content for each in await take(subscription, 2)] == ["I said this", "second"]


@pytest.mark.parametrize("frame", ["[]", "{}", "[[]]", '["OK"]', "[1]", '["EVENT","1.1",{},null]'])
async def test_malformed_frame_ends_the_stream_for_good(frame: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.receive()
        await peer._socket.send_str(frame)
        await peer.await_end()

    async with lying_relay(script) as url, client_of(url) as client:
        subscription = await client.subscribe({"kinds": [1]})
        with pytest.raises(PosthouseError) as refused:
            await take(subscription, 1)
        assert refused.value.code in ("answer_invalid", "event_field_missing")


async def test_unknown_verb_is_ignored() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        _, sub, *_ = await peer.receive()
        await peer.send("FANFARE", {"tempo": 120})
        await peer.send("EVENT", sub, TRUE, 1)
        await peer.await_end()

    async with lying_relay(script) as url, client_of(url) as client:
        subscription = await client.subscribe({"kinds": [1]})
        assert len(await take(subscription, 1)) == 1


async def test_relay_with_another_key_than_before_gets_no_signature(tmp_path: Any) -> None:
    pins = Pins(tmp_path / "home" / "pins.json")
    proofs: list[list[Any]] = []

    async def script(peer: Peer) -> None:
        await peer.send("HELLO", {"relay": peer.key.node, "challenge": "00" * 32, "features": []})
        try:
            proofs.append(await peer.receive())
        except TypeError:  # the client closed the connection instead
            return
        await peer.send("AUTHED", {"node": "whoever", "meshes": []})
        await peer.await_end()

    async with lying_relay(script) as url:
        pins.trust_relay(url, NodeKey(b"r" * 32).node)
        async with Client(url, ALICE, pins=pins, options=QUICK) as client:
            with pytest.raises(Refused) as refused:
                await client.connect()
        assert refused.value.code == "relay_key_changed"
        assert proofs == []
        assert f"posthouse trust {url}" in refused.value.hint


async def test_relay_key_that_changes_between_connections_ends_the_client(tmp_path: Any) -> None:
    keys = iter([NodeKey(b"1" * 32), NodeKey(b"2" * 32)])

    async def script(peer: Peer) -> None:
        peer.key = next(keys)
        await peer.greet()  # and then the connection ends

    async with lying_relay(script) as url, client_of(url) as client:
        with pytest.raises(Refused) as refused:
            await take(await client.subscribe({"kinds": [1]}), 1)
        assert refused.value.code == "relay_key_changed"


async def test_code_of_an_invite_is_not_sent_to_another_relay() -> None:
    async def script(peer: Peer) -> None:
        raise AssertionError("nothing is streamed here")

    from posthouse.client import Invite, parse_relay_url

    async with lying_relay(script) as url, client_of(url) as client:
        invite = Invite(parse_relay_url(url), "team", NodeKey(b"r" * 32).node, "the-code")
        with pytest.raises(Refused) as refused:
            await client.join(invite, "bob")
        assert refused.value.code == "relay_key_changed"
        assert "the-code" not in str(refused.value.problem())


async def test_relay_that_closes_after_every_greeting_is_not_hammered() -> None:
    connections = 0

    async def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await peer.greet()

    async with lying_relay(script) as url, client_of(url) as client:
        await client.connect()
        with pytest.raises(TimeoutError):
            import asyncio

            await asyncio.wait_for(anext(await client.subscribe({"kinds": [1]})), 1)
    assert connections < 40
