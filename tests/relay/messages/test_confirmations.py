"""Confirmations: which deliveries they close, and how senders get them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from posthouse.model.clock import FakeClock
from posthouse.model.rate import Rate
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import confirmation, direct, reading, send, states


async def test_each_id_counts_for_itself(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    mine, other, of_carol = direct(alice, bob, "1"), direct(alice, carol, "2"), direct(carol, bob, "3")
    await send(edge, mine, other, of_carol)
    event = confirmation(bob, alice, [mine["id"], other["id"], of_carol["id"], "0" * 64, mine["id"]])
    reply = await edge.post("/v1/events", event)
    assert reply.status == 201
    assert reply.value["confirmed"] == [mine["id"]]
    assert {each["id"]: each["reason"] for each in reply.value["ignored"]} == {
        other["id"]: "unknown",
        of_carol["id"]: "foreign",
        "0" * 64: "unknown",
    }
    assert await states(edge, alice, mine["id"]) == {bob.node: "confirmed"}
    assert await states(edge, alice, other["id"]) == {carol.node: "queued"}
    assert await states(edge, carol, of_carol["id"]) == {bob.node: "queued"}


async def test_confirmation_without_effect_says_so_and_leaves_nothing(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    first = confirmation(bob, alice, [message["id"]])
    assert [reply.status for reply in await send(edge, first, first)] == [201, 200]
    again = confirmation(bob, alice, [message["id"]])
    (reply,) = await send(edge, again)
    assert (reply.status, reply.code) == (409, "confirmation_without_effect")
    assert reply.value["ignored"] == [{"id": message["id"], "reason": "duplicate"}]
    assert (await edge.get(f"/v1/events/{again['id']}", await edge.token(bob))).status == 404


async def test_confirmation_of_another_reader_has_no_effect(
    edge: Edge, alice: Author, bob: Author, carol: Author
) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    (reply,) = await send(edge, confirmation(carol, alice, [message["id"]]))
    assert (reply.status, reply.code) == (409, "confirmation_without_effect")
    async with reading(edge, bob) as box:
        assert await box.next("QUEUE_STATUS") == [1]


async def test_forged_confirmation_has_no_effect(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    forged = confirmation(carol, alice, [message["id"]]) | {"pubkey": bob.node}
    async with edge.stream(carol) as stream:
        await stream.send("CONFIRM", forged)
        _id, is_accepted, problem = await stream.expect("OK")
        assert not is_accepted and problem["code"] == "event_id_mismatch"
        stolen = confirmation(bob, alice, [message["id"]])
        await stream.send("CONFIRM", stolen | {"sig": "0" * 128})
        _id, is_accepted, problem = await stream.expect("OK")
        assert not is_accepted and problem["status"] == 400
    assert await states(edge, alice, message["id"]) == {bob.node: "queued"}


async def test_confirm_takes_nothing_but_confirmations(edge: Edge, bob: Author) -> None:
    async with edge.stream(bob) as stream:
        await stream.send("CONFIRM", bob.event(1, "hello"))
        assert (await stream.expect("OK"))[2]["code"] == "confirmation_malformed"


async def test_confirmations_wait_for_an_offline_sender_and_go_once_read(
    edge: Edge, alice: Author, bob: Author
) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(120)]
    await edge.publish(*messages)
    ids = [message["id"] for message in messages]
    for start in range(0, 120, 50):
        await send(edge, confirmation(bob, alice, ids[start : start + 50]))
    confirmed: list[str] = []
    async with reading(edge, alice) as box:
        while len(confirmed) < 120:
            items, event = await box.next("CONFIRMED")
            assert event["pubkey"] == bob.node
            confirmed += [item["id"] for item in items]
        await box.silence()  # the pings behind them are answered by now
    assert confirmed == ids
    async with reading(edge, alice) as box:
        assert [command for command in await box.silence() if command[0] == "CONFIRMED"] == []


async def test_confirmations_stay_until_the_ping_behind_them_is_answered(
    edge: Edge, alice: Author, bob: Author
) -> None:
    message = direct(alice, bob)
    await send(edge, message, confirmation(bob, alice, [message["id"]]))
    for _ in range(2):
        async with edge.stream(alice, autoping=False) as stream:
            await stream.send("RECEIVE", "main", {})
            assert (await stream.until("CONFIRMED"))[-1][1][0]["id"] == message["id"]
    async with edge.stream(alice, autoping=False) as stream:
        await stream.send("RECEIVE", "main", {})
        await stream.until("CONFIRMED")
        ping = await stream.socket.receive()
        assert ping.type is aiohttp.WSMsgType.PING
        await stream.socket.pong(ping.data)
        await stream.send("COUNT", "read", {"limit": 1})
        assert (await stream.socket.receive()).type is aiohttp.WSMsgType.TEXT
    async with reading(edge, alice) as box:
        assert all(command[0] != "CONFIRMED" for command in await box.silence())


async def test_beyond_the_reserve_the_oldest_confirmations_go_and_states_stay(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", confirmation_reserve=10) as edge:
        messages = [direct(alice, bob, str(number)) for number in range(30)]
        await edge.publish(*messages)
        ids = [message["id"] for message in messages]
        for start in range(0, 30, 4):
            await send(edge, confirmation(bob, alice, ids[start : start + 4]))
        async with reading(edge, alice) as box:
            await box.silence()
            confirmed = [item["id"] for command in box.other if command[0] == "CONFIRMED" for item in command[1]]
        assert confirmed == ids[20:]
        assert await states(edge, alice, ids[0]) == {bob.node: "confirmed"}


async def test_confirmations_take_no_place_in_the_window(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, alice, window=1) as box:
        await box.silence()
        outgoing = [direct(alice, bob, str(number)) for number in range(5)]
        await edge.publish(*outgoing)
        await send(edge, direct(bob, alice, "waits"))
        await box.delivered(1)
        for message in outgoing:
            await send(edge, confirmation(bob, alice, [message["id"]]))
        for _ in outgoing:
            await box.next("CONFIRMED")


async def test_confirmations_with_effect_cost_no_rate_and_others_do(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, event_rate=Rate(1, 20)) as edge:
        messages = [direct(alice, bob, str(number)) for number in range(15)]
        await send(edge, *messages)
        useless = await send(edge, *[confirmation(bob, alice, ["0" * 64]) for _ in range(21)])
        assert [reply.code for reply in useless] == ["confirmation_without_effect"] * 20 + ["rate_limited"]
        replies = await send(edge, *[confirmation(bob, alice, [message["id"]]) for message in messages])
        assert {reply.status for reply in replies} == {201}


async def test_fifty_one_ids_or_two_senders_are_refused(edge: Edge, alice: Author, bob: Author) -> None:
    too_many = confirmation(bob, alice, [f"{number:064x}" for number in range(51)])
    two = confirmation(bob, alice, ["0" * 64], ("p", bob.node))
    for reply in await send(edge, too_many, two):
        assert (reply.status, reply.code) == (400, "confirmation_malformed")


async def test_confirmation_reaches_a_live_sender_at_once(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, alice) as box:
        await box.silence()
        messages = [direct(alice, bob, str(number)) for number in range(60)]
        await edge.publish(*messages)
        ids = [message["id"] for message in messages]
        await asyncio.gather(*(send(edge, confirmation(bob, alice, [id_])) for id_ in ids))
        confirmed = [item["id"] for _ in ids for item in (await box.next("CONFIRMED"))[0]]
        assert sorted(confirmed) == sorted(ids)
