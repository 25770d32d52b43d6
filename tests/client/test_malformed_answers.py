"""A relay that answers with malformed frames: every caller gets answer_invalid, and no task dies unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from posthouse.client import Client, Pins, sign_event
from posthouse.keys import NodeKey
from posthouse.model.errors import Fatal
from tests.client.hostile import Peer, lying_relay
from tests.client.house import QUICK
from tests.client.waiting import PATIENCE_S

ALICE, BOB = NodeKey.generate(), NodeKey.generate()
MESSAGE = sign_event(ALICE, 1000, "hello", (("p", BOB.node), ("c", "1")), 1_000)
#: a function of the id that the client waits for -> the answer
ANSWERS: dict[str, Callable[[str], Sequence[Any]]] = {
    "id is a list": lambda _id: ["OK", [], True, {}],
    "id is an object": lambda _id: ["OK", {}, True, {}],
    "id is a number": lambda _id: ["OK", 1, True, {}],
    "body is null": lambda id_: ["OK", id_, True, None],
    "body is a list": lambda id_: ["OK", id_, True, []],
    "problem is a text": lambda id_: ["OK", id_, False, "no"],
    "accepted is a number": lambda id_: ["OK", id_, 1, {}],
    "too short": lambda id_: ["OK", id_],
}


@asynccontextmanager
async def bob_at(script: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Client]:
    """Bob's client at a relay that follows `script` after the greeting."""

    async def play(peer: Peer) -> None:
        await peer.greet()
        await script(peer)
        await peer.await_end()

    async with lying_relay(play) as url, Client(url, BOB, pins=Pins(None), options=QUICK) as client:
        yield client


async def fails_as_invalid(call: Awaitable[Any]) -> None:
    with pytest.raises(Fatal) as refused:
        await asyncio.wait_for(call, PATIENCE_S / 4)
    assert refused.value.code == "answer_invalid"


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_malformed_answer_fails_the_publish_and_every_call_after_it(
    answer: Callable[[str], Sequence[Any]],
) -> None:
    async def script(peer: Peer) -> None:
        _, event = await peer.receive()
        await peer.send(*answer(event["id"]))

    async with bob_at(script) as client:
        await fails_as_invalid(client.publish("hello", kind=1))
        await fails_as_invalid(client.publish("again", kind=1))
        await fails_as_invalid(client.receive())
        assert not client.is_up


async def test_malformed_answer_ends_an_open_mailbox() -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        await peer.send("ROSTER", "main", [])
        await peer.send("OK", [], True, {})

    async with bob_at(script) as client:
        mailbox = await client.receive()
        await fails_as_invalid(anext(mailbox))


@pytest.mark.parametrize("ignored", [[1], [{"id": "x"}], {"id": "x"}, [{"id": [], "reason": "unknown"}]], ids=str)
async def test_malformed_answer_to_a_confirmation_fails_it(ignored: Any) -> None:
    async def script(peer: Peer) -> None:
        await peer.receive()
        await peer.send("ROSTER", "main", [])
        await peer.send("DELIVER", 1, msgspec.to_builtins(MESSAGE), {"was_stored": True, "attempt": 1})
        _, confirmation = await peer.receive()
        await peer.send("OK", confirmation["id"], True, {"ignored": ignored})

    async with bob_at(script) as client:
        mailbox = await client.receive()
        await fails_as_invalid(mailbox.confirm(await anext(mailbox)))


@pytest.mark.parametrize("result", [None, [], "granted", {"token": "one"}], ids=str)
async def test_malformed_grant_fails_the_caller(result: Any) -> None:
    async def script(peer: Peer) -> None:
        _, number, *_ = await peer.receive()
        await peer.send("LOCKED", number, result)

    async with bob_at(script) as client:
        await fails_as_invalid(client.locks.acquire("db", lease_ms=5_000))


@pytest.mark.parametrize("result", [None, [], {}, {"token": []}], ids=str)
async def test_malformed_grant_for_a_caller_that_left_ends_the_stream(result: Any) -> None:
    has_left = asyncio.Event()

    async def script(peer: Peer) -> None:
        _, number, *_ = await peer.receive()
        await has_left.wait()
        await peer.send("LOCKED", number, result)

    async with bob_at(script) as client:
        await client.connect()
        waiting = asyncio.create_task(client.locks.acquire("db", lease_ms=5_000, wait_ms=60_000))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        has_left.set()
        await fails_as_invalid(client.receive())


@pytest.mark.parametrize("not_queued", [[1], [{"recipient": 1}], "none"], ids=str)
async def test_malformed_answer_to_a_message_fails_its_sender(not_queued: Any) -> None:
    async def script(peer: Peer) -> None:
        _, event = await peer.receive()
        await peer.send("OK", event["id"], True, {"id": event["id"], "seq": 1, "not_queued": not_queued})

    async with bob_at(script) as client:
        await fails_as_invalid(client.send(ALICE.node, "hello"))


async def test_exception_in_a_callback_of_the_caller_ends_the_stream_with_an_error() -> None:
    confirmation = sign_event(ALICE, 1001, "", (("p", BOB.node), ("e", "a" * 64)), 1_000)

    async def script(peer: Peer) -> None:
        await peer.receive()
        await peer.send("ROSTER", "main", [])
        item = {"id": "a" * 64, "was_stored": True, "at_ns": 1}
        await peer.send("CONFIRMED", [item], msgspec.to_builtins(confirmation))

    def broken(_: object) -> None:
        raise ZeroDivisionError

    async with bob_at(script) as client:
        mailbox = await client.receive(on_confirmed=broken)
        with pytest.raises(Fatal) as refused:
            await asyncio.wait_for(anext(mailbox), PATIENCE_S)
        assert refused.value.code == "internal"
