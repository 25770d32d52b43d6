"""One message from a local program on one host to the inbox on another, and back."""

from __future__ import annotations

from tests.daemon.hosts import Host, eventually


async def test_a_send_arrives_in_the_inbox_of_another_host_and_is_confirmed(alice: Host, bob: Host) -> None:
    sent = await alice.send(bob.node, "hello")
    assert sent.status == 202
    assert sent["status"] == "queued"

    waited = await bob.get("/v1/inbox", wait_s=10)
    [item] = waited["items"]
    assert item["body"] == "hello"
    assert item["sender"] == alice.node
    assert item["client_message_id"] == sent["client_message_id"]
    assert item["message_id"] == sent["message_id"]

    row = await alice.until_status(sent["client_message_id"], "done")
    assert row["broker_message_id"] == item["message_id"]
    assert row["history_id"] > 0

    async def state() -> str:
        answer = await alice.get(f"/v1/messages/{item['message_id']}")
        return str(answer["relay"]["deliveries"][0]["state"])

    assert await eventually(state, lambda found: found == "confirmed") == "confirmed"


async def test_a_reply_names_the_message_it_answers(alice: Host, bob: Host) -> None:
    sent = await alice.send(bob.node, "ping")
    await bob.until_bodies(1)
    answered = await bob.send(alice.node, "pong", reply_to_id=sent["message_id"])
    assert answered.status == 202
    [item] = (await alice.get("/v1/inbox", wait_s=10))["items"]
    assert item["reply_to_id"] == sent["message_id"]
    assert await alice.bodies() == ["pong"]
