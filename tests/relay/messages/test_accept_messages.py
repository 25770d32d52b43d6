"""Accepted once: the answer table, over HTTP and on the stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.message import DestinationKind, fingerprint
from posthouse.model.node import node_hex
from posthouse.model.rate import Rate
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import Event, direct, post, reading, send
from tests.relay.messages.waiting import eventually

WAYS = ("http", "stream")


async def publish(edge: Edge, author: Author, event: Event, way: str) -> tuple[int, dict[str, Any]]:
    """Send an event one of both ways; return the status and the answer."""
    if way == "http":
        reply = await edge.post("/v1/events", event)
        return reply.status, reply.value
    async with edge.stream(author) as stream:
        await stream.send("EVENT", event)
        event_id, is_accepted, answer = await stream.expect("OK")
        if not is_accepted:
            return answer["status"], answer
        assert event_id == answer["id"] or answer["duplicate"]
        return 200 if answer["duplicate"] else 201, answer


@pytest.mark.parametrize("way", WAYS)
async def test_same_message_again_gets_the_first_answer(edge: Edge, alice: Author, bob: Author, way: str) -> None:
    message = direct(alice, bob, "one", "c-1")
    status, first = await publish(edge, alice, message, way)
    assert status == 201 and first["not_queued"] == [] and first["duplicate"] is False
    status, again = await publish(edge, alice, message, way)
    assert status == 200
    assert again == {
        "id": message["id"],
        "seq": first["seq"],
        "duplicate": True,
        "client_message_id": "c-1",
        "history_available": True,
        "first_seen_at": again["first_seen_at"],
    }
    async with reading(edge, bob) as box:
        assert await box.next("QUEUE_STATUS") == [1]


@pytest.mark.parametrize("way", WAYS)
async def test_retry_signed_anew_gets_the_original_id_and_seq(edge: Edge, alice: Author, bob: Author, way: str) -> None:
    first = direct(alice, bob, "same body", "c-1")
    again = direct(alice, bob, "same body", "c-1")
    assert first["id"] != again["id"]
    _, original = await publish(edge, alice, first, way)
    status, answer = await publish(edge, alice, again, way)
    assert (status, answer["id"], answer["seq"], answer["duplicate"]) == (200, first["id"], original["seq"], True)
    assert (await edge.get(f"/v1/events/{again['id']}", await edge.token(alice))).status == 404


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "change",
    [
        {"body": "other"},
        {"tags": [("priority", "now")]},
        {"tags": [("meta", '{"a":1}')]},
        {"tags": [("e", "0" * 64)]},
    ],
)
async def test_other_message_under_a_used_id_is_a_conflict(
    edge: Edge, alice: Author, bob: Author, way: str, change: dict[str, Any]
) -> None:
    await send(edge, direct(alice, bob, "first", "c-1"))
    other = direct(alice, bob, change.get("body", "first"), "c-1", *change.get("tags", ()))
    status, problem = await publish(edge, alice, other, way)
    assert (status, problem["code"]) == (409, "idempotency_key_reused")
    assert problem["conflict"] == "request_fingerprint_mismatch"
    assert problem["client_message_id"] == "c-1"
    assert len(problem["fingerprint_prefix"]) == 16
    if "body" in change:
        digest = fingerprint(DestinationKind.DM, node_hex(bob.node), None, None, "", b"other")
        assert problem["fingerprint_prefix"] == digest.hex()[:16]


async def test_default_priority_and_empty_meta_do_not_make_another_message(
    edge: Edge, alice: Author, bob: Author
) -> None:
    await send(edge, direct(alice, bob, "x", "c-1"))
    (reply,) = await send(edge, direct(alice, bob, "x", "c-1", ("priority", "next"), ("meta", "{}")))
    assert reply.status == 200
    (reply,) = await send(edge, direct(alice, bob, "x", "c-1", ("mention", bob.node)))
    assert reply.status == 200


async def test_fifty_connections_with_one_id_make_one_message(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, "same", "c-1") for _ in range(50)]
    replies = await asyncio.gather(*(edge.post("/v1/events", message) for message in messages))
    assert sorted(reply.status for reply in replies) == [200] * 49 + [201]
    assert len({(reply.value["id"], reply.value["seq"]) for reply in replies}) == 1
    async with reading(edge, bob) as box:
        assert await box.next("QUEUE_STATUS") == [1]
        assert await box.bodies(1) == ["same"]


async def test_one_list_with_one_id_twice_makes_one_message(edge: Edge, alice: Author, bob: Author) -> None:
    events = [direct(alice, bob, body, "c-1") for body in ("same", "same", "other")]
    results = (await edge.post("/v1/events", {"events": events})).value["results"]
    assert [result["status"] for result in results] == [201, 200, 409]
    assert results[1]["id"] == results[0]["id"] == events[0]["id"]


async def test_two_members_with_the_same_id_do_not_meet(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    replies = await send(edge, direct(alice, bob, "from alice", "c-1"), direct(carol, bob, "from carol", "c-1"))
    assert [reply.status for reply in replies] == [201, 201]
    async with reading(edge, bob) as box:
        assert await box.bodies(2) == ["from alice", "from carol"]


@pytest.mark.parametrize("way", WAYS)
async def test_permanent_refusal_leaves_no_record(edge: Edge, alice: Author, way: str) -> None:
    status, problem = await publish(edge, alice, post(alice, "news", "x", "c-1"), way)
    assert (status, problem["code"], problem["client_message_id"]) == (404, "topic_unknown", "c-1")
    assert (await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))).status == 201
    status, _ = await publish(edge, alice, post(alice, "news", "something else", "c-1"), way)
    assert status == 201


@pytest.mark.parametrize(
    ("tags", "code", "status"),
    [
        ([("c", "1")], "message_malformed", 400),
        ([("p", "me"), ("c", "1")], "message_malformed", 400),
        ([("t", "a"), ("p", "BOB"), ("c", "1")], "message_malformed", 400),
        ([("p", "BOB")], "message_malformed", 400),
        ([("p", "BOB"), ("c", "1"), ("c", "2")], "message_malformed", 400),
        ([("p", "BOB"), ("c", "1"), ("meta", '{"b":1,"a":2}')], "message_malformed", 400),
        ([("p", "BOB"), ("c", "1"), ("mesh", "nowhere")], "mesh_unknown", 404),
        ([("t", "a.*"), ("c", "1")], "topic_invalid", 400),
    ],
)
async def test_malformed_messages_are_refused(
    edge: Edge, alice: Author, bob: Author, tags: list[tuple[str, str]], code: str, status: int
) -> None:
    named = [(name, bob.node if value == "BOB" else value) for name, value in tags]
    reply = await edge.post("/v1/events", alice.event(1000, "x", named))
    assert (reply.status, reply.code) == (status, code)


async def test_body_above_the_limit_is_refused(edge: Edge, alice: Author, bob: Author) -> None:
    (reply, fits) = await send(edge, direct(alice, bob, "x" * (48 * 1024 + 1)), direct(alice, bob, "x" * 48 * 1024))
    assert (reply.status, reply.code, fits.status) == (413, "body_too_large", 201)


async def test_direct_message_to_a_stranger_of_a_closed_mesh_is_refused(edge: Edge, alice: Author) -> None:
    admin = await edge.token(edge.admin)
    await edge.post("/v1/meshes", {"name": "lab", "open": False}, admin)
    (reply,) = await send(edge, direct(edge.admin, alice, "x", "c-1", ("mesh", "lab")))
    assert (reply.status, reply.code) == (404, "member_unknown")


async def test_rate_limited_retry_of_an_accepted_id_gets_its_original_answer(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, event_rate=Rate(1, 3)) as edge:
        messages = [direct(alice, bob, str(number), f"c-{number}") for number in range(4)]
        replies = await send(edge, *messages)
        assert [reply.status for reply in replies] == [201, 201, 201, 429]
        assert replies[3].code == "rate_limited" and replies[3].value["client_message_id"] == "c-3"
        for _ in range(5):
            replies = await send(edge, *messages[:3])
            assert [reply.status for reply in replies] == [200, 200, 200]
        clock.advance(1)
        assert [reply.status for reply in await send(edge, *messages)] == [200, 200, 200, 201]


async def test_retry_costs_no_rate(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, event_rate=Rate(1, 2)) as edge:
        message = direct(alice, bob, "x", "c-1")
        assert [reply.status for reply in await send(edge, *[message] * 10)] == [201] + [200] * 9
        assert [reply.status for reply in await send(edge, direct(alice, bob, "y", "c-2"))] == [201]


async def test_record_outlives_its_content(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob, "soon gone", "c-1", ("expiration", str(alice.event()["created_at_ns"] // 10**9 + 2)))
    assert (await send(edge, message))[0].status == 201
    engine = edge.server.context.engine

    async def is_swept() -> bool:
        return bool(await engine.store.submit(lambda unit: unit.sweep_expired(engine.clock.wall_ns(), 10)))

    await eventually(is_swept)
    (reply,) = await send(edge, message)
    assert (reply.status, reply.value["duplicate"], reply.value["history_available"]) == (200, True, False)
    found = (await edge.get(f"/v1/messages/{message['id']}", await edge.token(alice))).value
    assert [each["state"] for each in found["deliveries"]] == ["expired"]


async def test_records_end_with_their_retention(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, record_retention_days=7, queue_ttl_s=3600) as edge:
        await send(edge, direct(alice, bob, "x", "c-1"))
        clock.advance(7 * 86_400)
        await edge.server.context.engine.sweeper.sweep()
        assert [reply.status for reply in await send(edge, direct(alice, bob, "x", "c-1"))] == [200]
        clock.advance(1)
        await edge.server.context.engine.sweeper.sweep()
        assert [reply.status for reply in await send(edge, direct(alice, bob, "y", "c-1"))] == [201]


async def test_message_whose_record_is_over_is_known_by_its_id(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    message = direct(alice, bob, "x", "c-1")
    async with checked(tmp_path / "relay", clock, record_retention_days=7, queue_ttl_s=3600) as edge:
        (first,) = await send(edge, message)
        clock.advance(8 * 86_400)
        await edge.server.context.engine.sweeper.sweep()
        (again,) = await send(edge, message)
        assert (again.status, again.value["duplicate"], again.value["seq"]) == (200, True, first.value["seq"])
        younger = direct(alice, bob, "z", "c-2")
        assert [reply.status for reply in await send(edge, younger, younger)] == [201, 200]


async def test_record_that_is_needed_does_not_keep_those_behind_it(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    parked, done = direct(alice, bob, "x", "c-1"), direct(alice, bob, "x", "c-2")
    async with checked(tmp_path / "relay", clock, record_retention_days=7, queue_ttl_s=3600) as edge:
        await send(edge, parked, done)
        async with reading(edge, bob) as box:
            await box.delivered(2)
            await box.stream.send("REJECT", parked["id"], "no")
            await box.next("OK")
            await box.confirm(alice, done["id"])
        clock.advance(8 * 86_400)
        await edge.server.context.engine.sweeper.sweep()
        replies = await send(edge, direct(alice, bob, "y", "c-1"), direct(alice, bob, "y", "c-2"))
        assert [reply.status for reply in replies] == [409, 201]


@pytest.mark.parametrize("looks_before", [0, 1])
async def test_records_kept_for_ever_do_not_keep_those_behind_them(tmp_path: Path, looks_before: int) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, record_retention_days=None, queue_ttl_s=3600) as edge:
        await send(edge, direct(alice, bob, "x", "c-1"), direct(alice, bob, "x", "c-2"))
    async with checked(tmp_path / "relay", clock, record_retention_days=7, queue_ttl_s=3600) as edge:
        attendance = edge.server.context.engine.sweeper
        await send(edge, direct(alice, bob, "x", "c-3"))
        for _ in range(looks_before):
            await attendance.sweep()
        clock.advance(8 * 86_400)
        await send(edge, direct(alice, bob, "x", "c-4"))
        await attendance.sweep()
        again = [direct(alice, bob, "y", f"c-{number}") for number in range(1, 5)]
        assert [reply.status for each in again for reply in await send(edge, each)] == [409, 409, 201, 409]


async def test_topic_message_goes_to_subscribers_that_may_read_and_never_to_its_author(
    edge: Edge, alice: Author, bob: Author, carol: Author
) -> None:
    for author, pattern in ((alice, "news.>"), (bob, "news.*"), (bob, "news.>"), (carol, "sports.>")):
        reply = await edge.post("/v1/meshes/main/subscriptions", {"pattern": pattern}, await edge.token(author))
        assert reply.status == 200
    await edge.post("/v1/meshes/main/topics", {"name": "news.local"}, await edge.token(alice))
    message = post(alice, "news.local", "hear", None, ("mention", carol.node))
    (reply,) = await send(edge, message)
    assert reply.status == 201
    found = (await edge.get(f"/v1/messages/{message['id']}", await edge.token(alice))).value
    assert [each["recipient"] for each in found["deliveries"]] == [bob.node]
    assert found["mentions"] == [carol.node]


async def test_subscription_and_right_count_at_the_commit(edge: Edge, alice: Author, bob: Author) -> None:
    token, admin = await edge.token(bob), await edge.token(edge.admin)
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    recipients = []
    for step in ("none", "subscribed", "denied", "allowed", "unsubscribed"):
        if step == "subscribed":
            await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, token)
        elif step == "denied":
            await edge.post("/v1/meshes/main/access", {"node": bob.node, "read": "deny"}, admin)
        elif step == "allowed":
            await edge.post("/v1/meshes/main/access", {"node": bob.node, "read": "allow"}, admin)
        elif step == "unsubscribed":
            await edge.send("DELETE", "/v1/meshes/main/subscriptions?pattern=news", token=token)
        message = post(alice, "news", step)
        assert (await send(edge, message))[0].status == 201
        found = (await edge.get(f"/v1/messages/{message['id']}", await edge.token(alice))).value
        recipients.append(len(found["deliveries"]))
    assert recipients == [0, 1, 0, 1, 0]


async def test_killed_between_commit_and_answer_the_retry_is_a_duplicate(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    message = direct(alice, bob, "x", "c-1")
    async with checked(tmp_path / "relay") as edge:
        path = edge.server.context.engine._path
        path._finish = lambda *_: None  # type: ignore[method-assign] # the commit happened, the answer is lost
        sending = asyncio.create_task(edge.post("/v1/events", message))

        async def is_committed() -> bool:
            return bool(await edge.server.context.engine.store.known([message["id"]]))

        await eventually(is_committed)
        sending.cancel()
        path._idle.set()
    async with checked(tmp_path / "relay") as edge:
        (reply,) = await send(edge, message)
        assert (reply.status, reply.value["duplicate"], reply.value["id"]) == (200, True, message["id"])
        async with reading(edge, bob) as box:
            assert await box.next("QUEUE_STATUS") == [1]
