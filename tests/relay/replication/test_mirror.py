"""A mirror between two relays: events travel, are verified, have no other effect, and what is missing is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import KEY_ROTATION
from posthouse.relay.replication.mirror import Mirror, MirrorPlan
from posthouse.relay.replication.mirroring import ALL_MESHES, MirrorRights
from posthouse.relay.store.event_rows import Scope
from tests.relay.cluster.relays import eventually
from tests.relay.edge import Author, Edge, running

KEY = NodeKey.generate()
PLAN = MirrorPlan("main")


@pytest.fixture(autouse=True)
def on_each_store(each_store: None) -> None:
    """Run every test on SQLite and on PostgreSQL."""


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Edge, Edge]]:
    """Two relays of their own that KEY may mirror."""
    async with running(tmp_path / "a") as a, running(tmp_path / "b") as b:
        for edge in (a, b):
            edge.server.context.engine.mirroring.rights = MirrorRights(frozenset({(KEY.node, ALL_MESHES)}))
        yield a, b


@asynccontextmanager
async def mirror_of(pair: tuple[Edge, Edge], folder: Path, plan: MirrorPlan = PLAN) -> AsyncIterator[Mirror]:
    pins = Pins(folder / "pins.json")
    async with Client(pair[0].url, KEY, pins=pins) as first, Client(pair[1].url, KEY, pins=pins) as second:
        yield Mirror(first, second, plan, folder / "mirrors", system_clock())


async def ids_at(edge: Edge) -> set[str]:
    """Return the ids of all events that a relay has with their content."""
    rows = await edge.server.context.engine.store.contents_between(0, 10**9)
    return {row.id for row in rows if row.raw is not None}


async def test_events_reach_the_other_relay_and_are_served_there(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    author = Author()
    events = [author.event(content=str(number)) for number in range(30)]
    await pair[0].publish(*events)
    async with mirror_of(pair, tmp_path) as mirror:
        done = await mirror.run_once()
        assert (done.stored, done.refused) == (30, 0)
        token = await pair[1].token(Author())
        found = (await pair[1].get("/v1/events?kinds=1", token)).value["events"]
        assert [event["id"] for event in found] == [event["id"] for event in events]
        assert {name: found[0][name] for name in events[0]} == events[0], "as it was signed"


async def test_mirror_goes_on_at_its_cursor_after_a_restart(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    author = Author()
    await pair[0].publish(*[author.event() for _ in range(5)])
    async with mirror_of(pair, tmp_path) as mirror:
        await mirror.run_once()
    await pair[0].publish(author.event())
    async with mirror_of(pair, tmp_path) as mirror:
        done = await mirror.run_once()
        assert (done.stored, done.known) == (1, 0)


async def test_both_directions_meet_and_make_no_loop(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    author = Author()
    await pair[0].publish(*[author.event() for _ in range(5)])
    await pair[1].publish(*[author.event() for _ in range(7)])
    plan = replace(PLAN, is_both_ways=True)
    async with mirror_of(pair, tmp_path, plan) as mirror:
        running_mirror = asyncio.create_task(mirror.run(0.2))
        await _meet(pair, 12)
        await pair[0].publish(author.event())
        await _meet(pair, 13)
        heads = [(await edge.server.context.engine.store.extent()).head for edge in pair]
        running_mirror.cancel()
        await asyncio.gather(running_mirror, return_exceptions=True)
        assert [(await edge.server.context.engine.store.extent()).head for edge in pair] == heads
        assert mirror.done.refused == 0


async def _meet(pair: tuple[Edge, Edge], count: int) -> None:
    async with asyncio.timeout(20):
        while {len(await ids_at(edge)) for edge in pair} != {count}:  # noqa: ASYNC110 - no event says when
            await asyncio.sleep(0.02)


async def test_mirrored_message_opens_no_delivery_and_takes_no_dedupe_key(
    pair: tuple[Edge, Edge], tmp_path: Path
) -> None:
    sender, reader = Author(), Author()
    message = sender.event(1000, "hello", [("p", reader.node), ("c", "first")])
    await pair[0].publish(message)
    async with mirror_of(pair, tmp_path) as mirror:
        assert (await mirror.run_once()).stored == 1
    engine = pair[1].server.context.engine
    assert await engine.store.event(message["id"], Scope(reader.node, None)) is not None
    assert await engine.store.event(message["id"], Scope(Author().node, None)) is None, "still a direct message"
    (record,) = await engine.store.journal(0, 10, ["event.accepted", "message.accepted"])
    assert record.type == "event.accepted"
    assert record.decoded_body()["mirrored_by"] == KEY.node
    other = sender.event(1000, "another text", [("p", reader.node), ("c", "first")])
    assert (await pair[1].post("/v1/events", other)).status == 201, "its dedupe key is free at this relay"
    async with Client(pair[1].url, reader.key, pins=Pins(None)) as client, await client.receive() as mailbox:
        async with asyncio.timeout(20):
            delivery = await anext(mailbox)
        assert delivery.event.id == other["id"], "only the message of this relay was queued"


async def test_mirrored_events_skip_rights_rates_age_and_fences(tmp_path: Path) -> None:
    author = Author()
    old_ns = system_clock().wall_ns() - 3_000 * 86_400 * 10**9
    async with running(tmp_path / "b") as target:
        target.server.context.engine.mirroring.rights = MirrorRights(frozenset({(KEY.node, "closed")}))
        await target.server.context.engine.administration.create_mesh(target.admin.node, "closed")
        events = [
            author.event(1, "old", [("mesh", "closed")], old_ns),
            author.event(30_000, "x", [("mesh", "closed"), ("d", "x"), ("fence", "build", "7")]),
        ]
        assert (await target.post("/v1/events", events[1])).code == "not_member"
        async with Client(target.url, KEY, pins=Pins(None)) as client:
            pushed = await client.copies.push("closed", [json.dumps(event).encode() for event in events])
            assert (pushed.stored, pushed.refused) == (2, [])
            again = await client.copies.push("closed", [json.dumps(event).encode() for event in events])
            assert (again.stored, again.known) == (0, 2)


async def test_target_verifies_every_event(pair: tuple[Edge, Edge]) -> None:
    author = Author()
    forged = author.event() | {"content": "another"}
    elsewhere = author.event(tags=[("mesh", "nowhere")])
    passing = author.event(20_500)
    async with Client(pair[1].url, KEY, pins=Pins(None)) as client:
        raws = [json.dumps(event).encode() for event in (forged, elsewhere, passing, author.event())]
        pushed = await client.copies.push("main", [b'{"no":1}', *raws])
        assert pushed.stored == 1
        assert sorted(refusal.code for refusal in pushed.refused) == sorted(
            ["event_field_unknown", "event_id_mismatch", "mirror_refused", "mirror_refused"]
        )


async def test_mirrored_rotation_is_stored_without_effect(pair: tuple[Edge, Edge]) -> None:
    author, successor = Author(), Author()
    rotation = author.event(KEY_ROTATION, "", [("p", successor.node)])
    async with Client(pair[1].url, KEY, pins=Pins(None)) as client:
        assert (await client.copies.push("main", [json.dumps(rotation).encode()])).stored == 1
    await pair[1].publish(author.event())


async def test_node_that_is_not_listed_may_not_mirror(pair: tuple[Edge, Edge]) -> None:
    for edge in pair:
        edge.server.context.engine.mirroring.rights = MirrorRights(frozenset({(KEY.node, "other")}))
    async with Client(pair[0].url, KEY, pins=Pins(None)) as client:
        calls: list[Any] = [
            client.copies.push("main", [b"{}"]),
            client.copies.read_events("main", {}),
            client.copies.fetch("main", ["00" * 32]),
            client.copies.compare("main", {}, b"\x01\x00\x00"),
        ]
        for call in calls:
            with pytest.raises(PosthouseError) as refused:
                await call
            assert refused.value.code == "mirror_not_allowed"


async def test_comparison_brings_what_the_cursor_missed_and_answers_gone(
    pair: tuple[Edge, Edge], tmp_path: Path
) -> None:
    author = Author()
    events = [author.event(content=str(number)) for number in range(60)]
    await pair[0].publish(*events)
    await pair[1].publish(*events[:50])
    deletion = author.event(5, "", [("e", events[59]["id"])])
    await pair[0].publish(deletion)
    async with mirror_of(pair, tmp_path) as mirror:
        await mirror.compare()
        assert mirror.done.stored == 10, "nine events and the deletion"
        assert mirror.done.gone == 1
        assert await ids_at(pair[0]) == await ids_at(pair[1])
        before = mirror.done.compared_bytes
        await mirror.compare()
        assert mirror.done.compared_bytes - before < 3_000


async def test_deleted_event_does_not_come_back(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    author = Author()
    event = author.event(content="a secret")
    for edge in pair:
        await edge.publish(event)
    await pair[1].publish(author.event(5, "", [("e", event["id"])]))
    async with mirror_of(pair, tmp_path, replace(PLAN, is_both_ways=True)) as mirror:
        await mirror.run_once()
    assert event["id"] not in await ids_at(pair[0]), "the deletion was mirrored and had its effect"
    assert event["id"] not in await ids_at(pair[1])


async def test_filter_selects_by_what_both_relays_know_for_ever(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    author = Author()
    await pair[0].publish(author.event(1), author.event(7), Author().event(7))
    async with mirror_of(pair, tmp_path, MirrorPlan("main", {"kinds": [7], "authors": [author.node]})) as mirror:
        assert (await mirror.run_once()).stored == 1
    async with Client(pair[0].url, KEY, pins=Pins(None)) as client:
        for wanted in ({"#t": ["x"]}, {"ids": ["00" * 32]}, {"mesh": "other"}):
            with pytest.raises(PosthouseError) as refused:
                await client.copies.read_events("main", wanted)
            assert refused.value.code == "filter_invalid"


async def test_mirror_of_a_relay_with_itself_is_refused(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    async with mirror_of((pair[0], pair[0]), tmp_path) as mirror:
        with pytest.raises(PosthouseError) as refused:
            await mirror.run_once()
        assert refused.value.code == "usage"


async def test_live_event_is_mirrored_at_once(pair: tuple[Edge, Edge], tmp_path: Path) -> None:
    async with mirror_of(pair, tmp_path) as mirror:
        task = asyncio.create_task(mirror.run())
        await asyncio.sleep(0)
        event = Author().event()
        await pair[0].publish(event)
        live = pair[1].server.context.live
        await eventually(lambda: live.offered >= 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
