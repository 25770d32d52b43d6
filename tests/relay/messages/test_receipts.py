"""Receipts: what became of a direct message at its reader's host, kept once and passed on to the sender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.rate import Rate
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import Event, confirmation, direct, post, reading, send

AT_MS = 1_763_000_000_000


def receipt(reader: Author, sender: Author, *items: tuple[str, ...], agent: str = "") -> Event:
    """Return a receipt; an item is (id, state, at_ms, reason?)."""
    named = [("from", agent)] if agent else []
    return reader.event(1002, "", [("p", sender.node), *named, *(("e", *item) for item in items)])


def read(message: Event, at_ms: int = AT_MS) -> tuple[str, str, str]:
    return message["id"], "read", str(at_ms)


async def shown(edge: Edge, viewer: Author, message: Event) -> dict[str, Any]:
    """Return the only delivery of a message, as a node sees it."""
    reply = await edge.get(f"/v1/messages/{message['id']}", await edge.token(viewer))
    (delivery,) = reply.value["deliveries"]
    return dict(delivery)


async def test_sender_learns_that_its_message_was_read_and_the_state_shows_when(
    edge: Edge, alice: Author, bob: Author
) -> None:
    message = direct(alice, bob, "x", None, ("to", "claude"))
    await send(edge, message, confirmation(bob, alice, [message["id"]]))
    event = receipt(bob, alice, read(message), agent="claude")
    async with reading(edge, alice) as box:
        reply = await edge.post("/v1/events", event)
        assert (reply.status, reply.value["received"], reply.value["ignored"]) == (201, [message["id"]], [])
        assert await box.next("RECEIPT") == [[{"id": message["id"], "state": "read", "at_ms": AT_MS}], event]
    delivery = await shown(edge, alice, message)
    assert (delivery["state"], delivery["receipt"], delivery["receipt_at_ms"]) == ("confirmed", "read", AT_MS)


async def test_rejection_carries_its_reason(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message, receipt(bob, alice, (message["id"], "rejected", str(AT_MS), "agent_full")))
    delivery = await shown(edge, alice, message)
    assert (delivery["receipt"], delivery["receipt_reason"]) == ("rejected", "agent_full")
    assert delivery["state"] == "queued"  # a receipt closes nothing
    async with reading(edge, alice) as box:
        ((item,), _event) = await box.next("RECEIPT")
    assert item == {"id": message["id"], "state": "rejected", "at_ms": AT_MS, "reason": "agent_full"}


async def test_receipts_and_confirmations_wait_for_an_absent_sender_in_order(
    edge: Edge, alice: Author, bob: Author
) -> None:
    first, second = direct(alice, bob), direct(alice, bob)
    await send(edge, first, second, confirmation(bob, alice, [first["id"]]), receipt(bob, alice, read(first)))
    await send(edge, confirmation(bob, alice, [second["id"]]))
    async with reading(edge, alice) as box:
        found = [command[0] for command in await box.silence() if command[0] in ("CONFIRMED", "RECEIPT")]
    assert found == ["CONFIRMED", "RECEIPT", "CONFIRMED"]
    async with reading(edge, alice) as box:  # it answered the pings behind them
        assert not [command for command in await box.silence() if command[0] in ("CONFIRMED", "RECEIPT")]


async def test_time_is_kept_once(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    first = receipt(bob, alice, read(message))
    replies = await send(edge, message, first, first, receipt(bob, alice, read(message, AT_MS + 5)))
    assert [reply.status for reply in replies] == [201, 201, 200, 409]
    assert replies[3].code == "receipt_without_effect"
    assert replies[3].value["ignored"] == [{"id": message["id"], "reason": "duplicate"}]
    assert (await shown(edge, alice, message))["receipt_at_ms"] == AT_MS


async def test_two_receipts_in_one_list_count_once(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    both = [receipt(bob, alice, read(message, AT_MS + number)) for number in range(2)]
    results = (await edge.post("/v1/events", {"events": both})).value["results"]
    assert [each["status"] for each in results] == [201, 409]


async def test_each_id_of_a_receipt_counts_for_itself(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(bob))
    mine, other, foreign = direct(alice, bob), direct(alice, carol), direct(carol, bob)
    topic = post(alice, "news")
    await send(edge, mine, other, foreign, topic)
    reply = await edge.post("/v1/events", receipt(bob, alice, *map(read, (mine, other, foreign, topic))))
    assert reply.value["received"] == [mine["id"]]
    assert {each["id"]: each["reason"] for each in reply.value["ignored"]} == {
        other["id"]: "unknown",
        foreign["id"]: "foreign",
        topic["id"]: "topic",
    }


async def test_reader_that_blocks_the_sender_tells_it_nothing(edge: Edge, alice: Author, bob: Author) -> None:
    await edge.post("/v1/meshes/main/blocks", {"node": alice.node}, await edge.token(bob))
    message = direct(alice, bob)
    _sent, refused = await send(edge, message, receipt(bob, alice, read(message)))
    assert refused.code == "receipt_without_effect"
    assert (await shown(edge, alice, message))["receipt"] is None


@pytest.mark.parametrize(
    "items",
    [
        (),
        (("0" * 64,),),
        (("0" * 64, "read"),),
        (("0" * 63, "read", "1"),),
        (("0" * 64, "seen", "1"),),
        (("0" * 64, "read", "-1"),),
        (("0" * 64, "read", "1.5"),),
        (("0" * 64, "read", "9" * 17),),
        (("0" * 64, "rejected", "1", "x" * 501),),
        (("0" * 64, "read", "1", "x", "y"),),
        tuple((f"{number:064x}", "read", "1") for number in range(51)),
    ],
)
async def test_malformed_receipt_is_refused(
    edge: Edge, alice: Author, bob: Author, items: tuple[tuple[str, ...], ...]
) -> None:
    (refused,) = await send(edge, receipt(bob, alice, *items))
    assert (refused.status, refused.code) == (400, "receipt_malformed")


async def test_receipts_cost_no_rate_if_they_have_an_effect(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, event_rate=Rate(1, 20)) as edge:
        messages = [direct(alice, bob) for _ in range(20)]
        await send(edge, *messages)
        useful = await send(edge, *[receipt(bob, alice, read(message)) for message in messages])
        assert {reply.status for reply in useful} == {201}
        useless = await send(edge, *[receipt(bob, alice, read(messages[0], AT_MS + n)) for n in range(1, 23)])
        assert useless[-1].code == "rate_limited"


async def test_receipts_share_the_reserve_of_confirmations(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", confirmation_reserve=2) as edge:
        messages = [direct(alice, bob) for _ in range(3)]
        await send(edge, *messages, *[receipt(bob, alice, read(message)) for message in messages])
        async with reading(edge, alice) as box:
            found = [command[1][0]["id"] for command in await box.silence() if command[0] == "RECEIPT"]
        assert found == [message["id"] for message in messages[1:]]
        assert (await shown(edge, alice, messages[0]))["receipt"] == "read"


async def test_only_sender_and_reader_may_read_a_receipt(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    message = direct(alice, bob)
    event = receipt(bob, alice, read(message))
    await send(edge, message, event)
    seen = [(await edge.get(f"/v1/events/{event['id']}", await edge.token(who))).status for who in (alice, bob, carol)]
    assert seen == [200, 200, 404]


async def test_relay_announces_receipts_in_its_features(edge: Edge) -> None:
    assert (await edge.get("/v1/info")).value["features"]["receipts"] == {"version": 1}
