"""What a client accepts from a relay that lies about messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from posthouse.client import Client, Mailbox, Pins, sign_event
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event
from posthouse.model.limits import RECEIVE_WINDOW_MAX
from tests.client.hostile import Peer, lying_relay
from tests.client.house import QUICK
from tests.client.messages.pair import some
from tests.client.waiting import until

BOB, ALICE = NodeKey.generate(), NodeKey.generate()
ABOUT = {"was_stored": True, "attempt": 1}


@pytest.fixture(autouse=True)
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """These relays answer no confirmation: a client that closes would wait five seconds for it."""
    monkeypatch.setattr("posthouse.client.messages.receiver._SETTLE_S", 0.1)


def message(body: str = "hello", *, to: str = BOB.node, mesh: str | None = None, kind: int = 1000) -> Event:
    named = () if mesh is None else (("mesh", mesh),)
    return sign_event(ALICE, kind, body, (("p", to), ("c", body), *named), 1_000)


def plain(event: Event) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(event)
    return value


def altered(event: Event, **fields: Any) -> dict[str, Any]:
    return plain(event) | fields


@asynccontextmanager
async def mailbox_of(script: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Mailbox]:
    """Open Bob's mailbox at a relay that then follows `script`."""

    async def play(peer: Peer) -> None:
        await peer.greet()
        command = await peer.receive()
        assert command[:2] == ["RECEIVE", "main"]
        await peer.send("ROSTER", "main", [])
        await script(peer)
        await peer.await_end()

    async with lying_relay(play) as url, Client(url, BOB, pins=Pins(None), options=QUICK) as client:
        yield await asyncio.wait_for(client.receive(window=3), 20)


@pytest.mark.parametrize(
    "forged",
    [
        altered(message(), content="changed"),
        altered(message(), sig="0" * 128),
        altered(message(), pubkey=BOB.node),
        plain(message(to=ALICE.node)),
        plain(message(mesh="elsewhere")),
        plain(message(kind=1)),
    ],
    ids=["content", "signature", "author", "reader", "mesh", "kind"],
)
async def test_forged_message_is_rejected_and_the_next_one_arrives(forged: dict[str, Any]) -> None:
    rejected: list[Any] = []

    async def script(peer: Peer) -> None:
        await peer.send("DELIVER", 1, forged, ABOUT)
        await peer.send("DELIVER", 2, plain(message("real")), ABOUT)
        rejected.append(await peer.receive())

    async with mailbox_of(script) as box:
        (delivery,) = await some(box, 1)
        assert delivery.body == "real"
        assert box.forged == 1
    assert rejected[0][:2] == ["REJECT", forged["id"]]


async def test_message_that_cannot_be_opened_raises_when_its_body_is_read() -> None:
    sealed = sign_event(ALICE, 1000, "AAAA", (("p", BOB.node), ("c", "1"), ("enc", "box")), 1_000)

    async def script(peer: Peer) -> None:
        await peer.send("DELIVER", 1, plain(sealed), ABOUT)

    async with mailbox_of(script) as box:
        (delivery,) = await some(box, 1)
        with pytest.raises(PosthouseError):
            assert delivery.body


async def test_confirmation_for_another_sender_or_of_other_ids_is_ignored() -> None:
    item = {"id": "a" * 64, "was_stored": True, "at_ns": 1}
    strange = sign_event(ALICE, 1001, "", (("p", ALICE.node), ("e", "a" * 64)), 1_000)
    other = sign_event(ALICE, 1001, "", (("p", BOB.node), ("e", "b" * 64)), 1_000)
    right = sign_event(ALICE, 1001, "", (("p", BOB.node), ("e", "a" * 64)), 1_000)

    async def script(peer: Peer) -> None:
        for event in (strange, other, right):
            await peer.send("CONFIRMED", [item], plain(event))
        await peer.send("CONFIRMED", [item], altered(right, sig="1" * 128))
        await peer.send("DELIVER", 1, plain(message()), ABOUT)

    async with mailbox_of(script) as box:
        await some(box, 1)
        confirmed = box.confirmed()
        assert (await asyncio.wait_for(anext(confirmed), 20)).event == right
        assert box.forged == 3


async def test_more_messages_than_the_window_allows_end_the_mailbox() -> None:
    async def script(peer: Peer) -> None:
        for number in range(RECEIVE_WINDOW_MAX + 4):
            await peer.send("DELIVER", number, plain(message(str(number))), ABOUT)

    async with mailbox_of(script) as box:
        await until(lambda: not box.is_open)
        assert len(await box.take()) == 3
        with pytest.raises(PosthouseError) as refused:
            await some(box, 2 * RECEIVE_WINDOW_MAX)
        assert refused.value.code == "answer_invalid"


async def test_malformed_delivery_ends_the_client() -> None:
    async def script(peer: Peer) -> None:
        await peer.send("DELIVER", 1)

    async with mailbox_of(script) as box:
        with pytest.raises(PosthouseError) as refused:
            await some(box, 1)
        assert refused.value.code == "answer_invalid"
