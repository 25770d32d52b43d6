"""Pruning deletes what the lake holds, and never content that a reader still needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.ops import housekeeping as pruning
from tests.relay.archived import prune_through, range_of
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import direct, reading, send, states

DAY_S = 86_400


async def content(edge: Edge, author: Author, event_id: str) -> str | None:
    """Return the content of an event, None when the relay has it no more."""
    reply = await edge.get(f"/v1/events/{event_id}", await edge.token(author))
    return str(reply.value["content"]) if reply.status == 200 else None


async def test_undelivered_message_outlives_pruning_and_goes_with_a_later_one(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path, clock) as edge:
        message = direct(alice, bob, "patient")
        await send(edge, message)
        clock.advance(DAY_S)
        first = await prune_through(edge)
        assert first.status == 200, first.body
        assert (first.value["emptied"], await content(edge, alice, message["id"])) == (0, "patient")
        async with reading(edge, bob) as box:
            assert await box.bodies(1) == ["patient"]
            await box.confirm(alice, message["id"])
        async with reading(edge, alice) as box:  # the confirmation is read, too
            await box.next("CONFIRMED")
            await box.silence()
        assert await states(edge, alice, message["id"]) == {bob.node: "confirmed"}
        clock.advance(DAY_S)
        await edge.publish(alice.event())
        last = await prune_through(edge)
        assert last.value["emptied"] >= 1, last.body
        assert await content(edge, alice, message["id"]) is None
        about = (await edge.get(f"/v1/messages/{message['id']}", await edge.token(alice))).value
        assert (about["history_available"], about["deliveries"]) == (False, [])


async def test_message_whose_end_is_not_archived_yet_keeps_its_content(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path, clock) as edge:
        message = direct(alice, bob)
        await send(edge, message)
        head = (await edge.server.context.engine.store.extent()).head
        clock.advance(60)
        async with reading(edge, bob) as box:
            await box.delivered(1)
            await box.confirm(alice, message["id"])
        assert (await prune_through(edge, head)).value["emptied"] == 0
        assert await states(edge, alice, message["id"]) == {bob.node: "confirmed"}


async def test_rejected_message_stays_and_can_be_requeued_after_pruning(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path) as edge:
        message = direct(alice, bob, "again")
        await send(edge, message)
        async with reading(edge, bob) as box:
            await box.delivered(1)
            await box.stream.send("REJECT", message["id"], "not now")
            await box.next("OK")
        assert (await prune_through(edge)).status == 200
        body = {"node": bob.node, "ids": [message["id"]]}
        reply = await edge.post("/v1/meshes/main/queues/requeue", body, await edge.token(edge.admin))
        assert reply.status == 200, reply.body
        async with reading(edge, bob) as box:
            assert await box.bodies(1) == ["again"]


async def test_retry_of_a_pruned_message_gets_its_first_answer(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path, clock, queue_ttl_s=60) as edge:
        message = direct(alice, bob)
        (first,) = await send(edge, message)
        clock.advance(2 * DAY_S)
        await edge.server.context.engine.sweeper.sweep()
        clock.advance(2 * DAY_S)
        await edge.publish(alice.event())
        assert (await prune_through(edge)).value["emptied"] >= 1
        (again,) = await send(edge, message)
        assert (again.status, again.value["id"]) == (200, first.value["id"])
        assert (again.value["duplicate"], again.value["history_available"]) == (True, False)


async def test_replaced_event_goes_when_it_is_no_longer_current(tmp_path: Path) -> None:
    clock = FakeClock()
    alice = Author(clock)
    async with checked(tmp_path, clock) as edge:
        old = alice.event(30_000, "old", [("d", "x")])
        await edge.publish(old)
        assert (await prune_through(edge)).value["emptied"] == 0
        assert await content(edge, alice, old["id"]) == "old"
        clock.advance(1)
        new = alice.event(30_000, "new", [("d", "x")])
        await edge.publish(new)
        assert (await prune_through(edge)).value["emptied"] == 1
        assert [await content(edge, alice, each["id"]) for each in (old, new)] == [None, "new"]


async def test_without_a_digest_of_contents_only_records_go(tmp_path: Path) -> None:
    alice = Author()
    async with checked(tmp_path) as edge:
        event = alice.event(1, "here")
        await edge.publish(event)
        store = edge.server.context.engine.store
        body = await range_of(store, 1, (await store.extent()).head)
        del body["contents"]
        reply = await edge.post("/v1/admin/prune", body, await edge.token(edge.admin))
        assert (reply.value["pruned"], reply.value["emptied"]) == (body["to_seq"], 0)
        assert await content(edge, alice, event["id"]) == "here"


async def test_event_with_an_expiration_is_left_to_it(tmp_path: Path) -> None:
    clock = FakeClock()
    alice = Author(clock)
    async with checked(tmp_path, clock) as edge:
        event = alice.event(1, "for a day", [("expiration", str(clock.wall_ns() // 10**9 + DAY_S))])
        await edge.publish(event)
        assert (await prune_through(edge)).status == 200
        assert await content(edge, alice, event["id"]) == "for a day"
        clock.advance(2 * DAY_S)
        assert await edge.server.context.engine._housekeeping.run_once() == 1


async def test_long_prefix_goes_in_small_steps_between_the_work_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "STEP_RECORDS", 5)
    alice = Author()
    async with checked(tmp_path) as edge:
        await edge.publish(*[alice.event(1, str(number)) for number in range(100)])
        store = edge.server.context.engine.store
        seen: list[int] = []
        pruned = asyncio.ensure_future(prune_through(edge, 100))
        while not pruned.done():
            await edge.publish(alice.event(1, "meanwhile"))
            seen.append((await store.extent()).pruned_through)
        assert (await pruned).status == 200
        assert any(0 < horizon < 100 for horizon in seen), "others never saw it on its way"


async def test_pruning_that_is_broken_off_goes_on_from_the_oldest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "STEP_RECORDS", 5)
    alice = Author()
    async with checked(tmp_path) as edge:
        await edge.publish(*[alice.event(1, str(number)) for number in range(50)])
        store = edge.server.context.engine.store
        pruned = asyncio.ensure_future(prune_through(edge, 50))
        while not (await store.extent()).pruned_through:
            assert not pruned.done()
        pruned.cancel()
    async with checked(tmp_path) as edge:
        store = edge.server.context.engine.store
        assert (await store.extent()).pruned_through > 0
        assert (await prune_through(edge, 50)).status in (200, 409)
        assert (await store.extent()).pruned_through == 50
