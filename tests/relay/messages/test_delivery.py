"""Messages from sender to reader: the way there and the confirmation back."""

from __future__ import annotations

from tests.relay.edge import Author, Edge
from tests.relay.messages.correspondents import direct, reading, send


async def test_message_waits_for_its_reader_and_the_confirmation_for_its_sender(edge: Edge) -> None:
    alice, bob = Author(), Author()
    message = direct(alice, bob, "one")
    (reply,) = await send(edge, message)
    assert reply.status == 201
    tag = dict(message["tags"])["c"]
    assert reply.value == {
        "id": message["id"], "seq": reply.value["seq"], "duplicate": False, "client_message_id": tag, "not_queued": [],
    }  # fmt: skip
    async with reading(edge, bob) as box:
        assert await box.next("QUEUE_STATUS") == [1]
        assert await box.next("DELIVER") == [reply.value["seq"], message, {"was_stored": True, "attempt": 1}]
        ok = await box.confirm(alice, message["id"])
        assert ok[1] is True and ok[2]["confirmed"] == [message["id"]] and ok[2]["ignored"] == []
    async with reading(edge, alice) as box:
        items, event = await box.next("CONFIRMED")
        assert event["pubkey"] == bob.node
        assert items == [{"id": message["id"], "was_stored": True, "at_ns": items[0]["at_ns"]}]


async def test_message_to_an_open_mailbox_comes_at_once(edge: Edge) -> None:
    alice, bob = Author(), Author()
    async with reading(edge, bob) as box, reading(edge, alice) as sender:
        await box.silence()
        message = direct(alice, bob, "live")
        (reply,) = await send(edge, message)
        assert await box.next("DELIVER") == [reply.value["seq"], message, {"was_stored": False, "attempt": 1}]
        await box.confirm(alice, message["id"])
        items, _event = await sender.next("CONFIRMED")
        assert [(each["id"], each["was_stored"]) for each in items] == [(message["id"], False)]
