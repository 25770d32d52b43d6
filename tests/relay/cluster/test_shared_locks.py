"""Locks of several relays on one database: one of them decides, all of them answer."""

from __future__ import annotations

import asyncio
from typing import Any

from posthouse.model.event import DELETION
from posthouse.relay.locks.waiters import CHECK_EVERY_S
from posthouse.relay.wire.lock_operations import Acquire
from tests.relay.cluster.relays import cluster_of, eventually
from tests.relay.edge import Author, Edge, Reply


async def acquire(edge: Edge, token: str, resource: str = "deploy", **more: Any) -> Reply:
    """Ask a relay for a lock."""
    return await edge.post("/v1/locks/acquire", {"resource": resource, "lease_ms": 60_000} | more, token)


async def test_lock_that_one_relay_granted_is_held_at_all(two: list[Edge]) -> None:
    assert [cluster_of(edge).is_leader for edge in two] == [True, False]
    tokens = [await edge.token(Author()) for edge in two]
    granted = await acquire(two[1], tokens[1])
    assert granted.status == 200, granted.body
    assert (await acquire(two[0], tokens[0])).code == "held"
    shown = await two[1].get("/v1/locks?resource=deploy", tokens[1])
    assert (shown.value["held"], shown.value["token"]) == (True, granted.value["token"])
    listed = await two[1].get("/v1/locks", tokens[1])
    assert [lock["resource"] for lock in listed.value["locks"]] == ["deploy"]
    released = await two[1].post(
        "/v1/locks/release", {"resource": "deploy", "token": granted.value["token"]}, tokens[1]
    )
    assert released.status == 200, released.body
    assert (await acquire(two[0], tokens[0])).status == 200


async def test_waiter_at_one_relay_gets_the_lock_that_is_released_at_another(two: list[Edge]) -> None:
    tokens = [await edge.token(Author()) for edge in two]
    held = (await acquire(two[0], tokens[0])).value
    waiting = asyncio.create_task(acquire(two[1], tokens[1], wait_ms=20_000))
    await eventually(lambda: two[0].server.context.engine.locks.waiters == 1)
    await two[0].post("/v1/locks/release", {"resource": "deploy", "token": held["token"]}, tokens[0])
    granted = await waiting
    assert granted.status == 200, granted.body
    assert granted.value["token"] > held["token"]


async def test_waiter_that_goes_away_at_another_relay_leaves_the_queue(two: list[Edge]) -> None:
    holder, waiter = Author(), Author()
    await acquire(two[0], await two[0].token(holder))
    async with two[1].stream(waiter) as stream:
        await stream.send("LOCK", "r", "acquire", {"resource": "deploy", "lease_ms": 5_000, "wait_ms": 60_000})
        await eventually(lambda: two[0].server.context.engine.locks.waiters == 1)
    await eventually(lambda: two[0].server.context.engine.locks.waiters == 0)


async def test_wait_at_another_relay_ends_once_its_caller_is_gone_and_not_before(two: list[Edge]) -> None:
    await acquire(two[0], await two[0].token(Author()))
    is_gone = False
    request = Acquire("deploy", 60_000, wait_ms=600_000)
    waiting = two[1].server.context.engine.locks.ask(Author().node, request, lambda: is_gone)
    await eventually(lambda: two[0].server.context.engine.locks.waiters == 1)
    await asyncio.wait([waiting], timeout=2 * CHECK_EVERY_S)
    assert not waiting.done()
    is_gone = True
    await eventually(waiting.cancelled)
    await eventually(lambda: two[0].server.context.engine.locks.waiters == 0)


async def test_watch_at_one_relay_shows_changes_that_another_one_makes(two: list[Edge]) -> None:
    watcher, holder = Author(), Author()
    token = await two[0].token(holder)
    async with two[1].stream(watcher) as stream:
        await stream.send("LOCK", "w", "watch", {"resource": "deploy"})
        assert (await stream.expect("LOCKED"))[1]["held"] is False
        await acquire(two[0], token)
        shown = (await stream.expect("LOCKED"))[1]
        assert (shown["held"], shown["owner"]) == (True, holder.node)


async def test_deletion_in_a_list_with_a_fenced_event_is_answered_by_the_leader(two: list[Edge]) -> None:
    writer = two[0].admin
    fence = (await acquire(two[1], await two[1].token(writer))).value["token"]
    earlier = writer.event(1, "to be deleted")
    await two[0].publish(earlier)
    fenced = writer.event(30_001, "new", [("d", "state"), ("fence", "deploy", str(fence))])
    deletion = writer.event(DELETION, "", [("e", earlier["id"])])
    reply = await two[1].post("/v1/events", {"events": [fenced, deletion]})
    assert [each["status"] for each in reply.value["results"]] == [201, 201]
    assert reply.value["results"][1]["deleted"] == 1


async def test_fenced_events_are_decided_by_the_leader_and_keep_the_order_of_their_connection(two: list[Edge]) -> None:
    writer = Author()
    token = await two[1].token(writer)
    fence = (await acquire(two[1], token)).value["token"]
    tags = [("d", "state"), ("fence", "deploy", str(fence))]
    async with two[1].stream(writer) as stream:
        events = [writer.event(30_001, str(number), tags) for number in range(3)]
        await stream.send("EVENT", events[0])
        await stream.send("EVENT", events[1])
        plain = writer.event(1, "later")
        await stream.send("EVENT", plain)
        answers = [await stream.expect("OK") for _ in range(3)]
        assert [(answer[0], answer[1]) for answer in answers] == [(each["id"], True) for each in (*events[:2], plain)]
        seqs = [answer[2]["seq"] for answer in answers]
        assert seqs == sorted(seqs)
        wrong = writer.event(30_001, "x", [("d", "state"), ("fence", "deploy", str(fence + 1))])
        await stream.send("EVENT", wrong)
        refused = await stream.expect("OK")
        assert (refused[1], refused[2]["code"]) == (False, "fence_unknown")


async def test_leader_that_stops_hands_over_and_leases_and_watches_go_on(two: list[Edge]) -> None:
    holder, watcher = Author(), Author()
    token = await two[1].token(holder)
    held = (await acquire(two[1], token)).value
    async with two[1].stream(watcher) as stream:
        await stream.send("LOCK", "w", "watch", {"resource": "deploy"})
        assert (await stream.expect("LOCKED"))[1]["held"] is True
        cluster = cluster_of(two[0])
        await cluster.close()
        await eventually(lambda: cluster_of(two[1]).is_leader)
        assert (await acquire(two[1], await two[1].token(Author()))).code == "held"
        renewed = await two[1].post(
            "/v1/locks/renew", {"resource": "deploy", "token": held["token"], "lease_ms": 60_000}, token
        )
        assert renewed.status == 200, renewed.body
        await two[1].post("/v1/locks/release", {"resource": "deploy", "token": held["token"]}, token)
        while (await stream.expect("LOCKED"))[1]["held"]:  # the new leader shows the present state, too
            pass
