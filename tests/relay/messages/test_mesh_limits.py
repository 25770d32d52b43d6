"""Limits of meshes: what a full mesh does, what the sweeper takes and spares, usage, suspension and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import STEADY_S, FakeClock
from posthouse.model.event import Coordinate
from posthouse.model.limits import DAY_S
from posthouse.relay.store.event_rows import address_term
from tests.relay.archived import prune_through
from tests.relay.edge import Author, Edge, Reply
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import confirmation, direct, reading

LAB = ("mesh", "lab")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def lab(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Edge]:
    """A relay with the mesh lab, whose admin is Lena."""
    async with checked(tmp_path / "relay", clock) as edge:
        reply = await edge.post("/v1/meshes", {"name": "lab", "open": True}, await edge.token(edge.admin))
        assert reply.status == 201
        yield edge


@pytest.fixture
def alice(clock: FakeClock) -> Author:
    return Author(clock)


@pytest.fixture
def bob(clock: FakeClock) -> Author:
    return Author(clock)


async def set_limits(edge: Edge, source: str = "mesh", author: Author | None = None, **limits: Any) -> Reply:
    token = await edge.token(author or edge.admin)
    return await edge.post("/v1/meshes/lab/limits", {"limits": limits, "source": source}, token)


async def usage(edge: Edge) -> dict[str, Any]:
    found: dict[str, Any] = (await edge.get("/v1/meshes/lab/usage", await edge.token(edge.admin))).value
    return found


async def publish(edge: Edge, *events: dict[str, Any]) -> list[str]:
    """Publish events one by one; return the status or the code of each."""
    replies = [await edge.post("/v1/events", event) for event in events]
    return [str(reply.status) if reply.status < 300 else reply.code for reply in replies]


async def contents(edge: Edge, reader: Author) -> list[str]:
    reply = await edge.get("/v1/events?mesh=lab", await edge.token(reader))
    return [event["content"] for event in reply.value["events"]]


async def sweep(edge: Edge) -> None:
    """Apply all limits; a change of limits does so by itself, some time later."""
    async with asyncio.timeout(20):
        await edge.server.context.engine.retention.sweep()


async def test_full_mesh_refuses_new_events_and_takes_retries_and_deletions(lab: Edge, alice: Author) -> None:
    assert (await set_limits(lab, max_events=2)).status == 200
    first, second, third = (alice.event(1, str(number), [LAB]) for number in range(3))
    assert await publish(lab, first, second, third) == ["201", "201", "mesh_full"]
    reply = await lab.post("/v1/events", third)
    assert (reply.status, reply.value["events"]) == (507, 2)
    assert await publish(lab, second) == ["200"], "a retry needs no room"
    gone = alice.event(5, "", [("e", first["id"]), ("e", second["id"]), LAB])
    assert await publish(lab, gone) == ["mesh_full"], "a tenth of so small a limit is no room for a deletion"
    assert (await set_limits(lab, max_events=10)).status == 200
    filling = [alice.event(1, "x", [LAB]) for _ in range(8)]
    assert set(await publish(lab, *filling)) == {"201"}
    assert await publish(lab, third, gone) == ["mesh_full", "201"], "deletions make room"
    assert await publish(lab, third) == ["201"]
    assert (await usage(lab))["events"] == 10


async def test_limit_of_bytes_counts_what_is_stored(lab: Edge, alice: Author) -> None:
    event = alice.event(1, "a", [LAB])
    await lab.publish(event)
    size = (await usage(lab))["bytes"]
    assert size > 200
    assert (await set_limits(lab, max_bytes=2 * size)).status == 200
    assert await publish(lab, alice.event(1, "b", [LAB]), alice.event(1, "c", [LAB])) == ["201", "mesh_full"]
    assert await publish(lab, alice.event(1, "in main")) == ["201"], "other meshes are not concerned"


async def test_full_mesh_drops_its_oldest_events_if_it_shall(lab: Edge, alice: Author, bob: Author) -> None:
    assert (await set_limits(lab, max_events=3, on_full="drop_oldest")).status == 200
    events = [alice.event(1, str(number), [LAB]) for number in range(6)]
    assert set(await publish(lab, *events)) == {"201"}
    assert await contents(lab, bob) == ["3", "4", "5"]
    assert await publish(lab, events[0]) == ["200"], "the id of a dropped event stays known"
    assert await contents(lab, bob) == ["3", "4", "5"]
    found = await lab.get("/v1/journal?types=content.swept", await lab.token(lab.admin))
    bodies = [record["body"] for record in found.value["records"]]
    assert {body["reason"] for body in bodies} == {"drop_oldest"}
    assert sum(len(body["seqs"]) for body in bodies) == 3


async def test_nothing_is_dropped_that_an_open_delivery_or_a_coordinate_needs(
    lab: Edge, alice: Author, bob: Author
) -> None:
    assert (await set_limits(lab, max_events=2, on_full="drop_oldest")).status == 200
    message = direct(alice, bob, "wait for me", None, LAB)
    current = alice.event(30_000, "current", [("d", "x"), LAB])
    assert await publish(lab, message, current) == ["201", "201"]
    assert await publish(lab, alice.event(1, "new", [LAB])) == ["mesh_full"]
    assert await publish(lab, confirmation(bob, alice, [message["id"]], LAB)) == ["201"], "queues can always drain"
    waiting = "the confirmation waits for its sender"
    async with reading(lab, alice, "lab") as box:
        await box.next("CONFIRMED")
        await box.silence()
    assert set(await publish(lab, alice.event(1, "new", [LAB]))) <= {"201"}, waiting
    assert "current" in await contents(lab, alice)


async def test_events_above_their_age_are_swept_and_current_versions_are_spared(
    lab: Edge, alice: Author, bob: Author, clock: FakeClock
) -> None:
    hour = {"first_kind": 1, "last_kind": 9_999, "max_age_s": 3_600}
    day = {"first_kind": 1, "last_kind": 39_999, "max_age_s": DAY_S}
    assert (await set_limits(lab, max_age=[hour, day])).status == 200
    note = alice.event(1, "note", [LAB])
    versions = [alice.event(30_000, text, [("d", "x"), LAB]) for text in ("old version", "current version")]
    message = direct(alice, bob, "unread", None, LAB)
    await lab.publish(note, *versions, message)
    await sweep(lab)
    assert await contents(lab, alice) == ["note", "old version", "current version", "unread"]
    clock.advance(7_200)
    await sweep(lab)
    assert await contents(lab, alice) == ["old version", "current version", "unread"]
    clock.advance(DAY_S)
    await sweep(lab)
    assert await contents(lab, alice) == ["current version", "unread"], "a message that waits is needed"
    assert await publish(lab, note) == ["200"], "a retry of a swept event is a duplicate"
    async with reading(lab, bob, "lab") as box:
        assert await box.bodies(1) == ["unread"]
        assert await publish(lab, confirmation(bob, alice, [message["id"]], LAB)) == ["201"]
    await sweep(lab)
    assert "unread" not in await contents(lab, alice)


async def test_clock_that_is_days_ahead_sweeps_nothing_by_age_before_it_has_been_steady_for_an_hour(
    lab: Edge, alice: Author, clock: FakeClock
) -> None:
    day = {"first_kind": 1, "last_kind": 39_999, "max_age_s": DAY_S}
    assert (await set_limits(lab, max_age=[day], versions=1)).status == 200
    clock.advance(STEADY_S)
    versions = [alice.event(30_000, text, [("d", "x"), LAB]) for text in ("old version", "current version")]
    await lab.publish(alice.event(1, "note", [LAB]), *versions)
    clock.step_wall(10 * DAY_S)
    await sweep(lab)
    assert await contents(lab, Author(clock)) == ["note", "current version"], "versions do not depend on the clock"
    assert "posthouse_relay_clock_steady 0.0" in metrics_of(lab)
    clock.step_wall(-10 * DAY_S)
    await sweep(lab)
    clock.advance(STEADY_S)
    await sweep(lab)
    assert await contents(lab, Author(clock)) == ["note", "current version"], "after the step back nothing is old"
    assert "posthouse_relay_clock_steady 1.0" in metrics_of(lab)
    clock.advance(DAY_S)
    await sweep(lab)
    assert await contents(lab, Author(clock)) == ["current version"]


async def test_event_outlives_a_clock_that_was_past_its_expiration_for_a_while(
    lab: Edge, alice: Author, clock: FakeClock
) -> None:
    housekeeping = lab.server.context.engine._housekeeping
    expiration = ("expiration", str(clock.wall_ns() // 10**9 + 2 * DAY_S))
    await lab.publish(alice.event(1, "for two days", [LAB, expiration]))
    clock.advance(STEADY_S)
    clock.step_wall(10 * DAY_S)
    assert await housekeeping.run_once() == 0
    await lab.publish(Author(clock).event(1, "of a day that has not come"))  # the journal's time never goes back
    clock.step_wall(-10 * DAY_S)
    assert await housekeeping.run_once() == 0
    clock.advance(STEADY_S)
    assert await housekeeping.run_once() == 0, "it has not expired by the clock"
    assert "for two days" in await contents(lab, Author(clock))
    clock.advance(2 * DAY_S)
    assert await housekeeping.run_once() == 1


async def test_metrics_show_how_far_the_sweeper_is(lab: Edge, alice: Author, clock: FakeClock) -> None:
    clock.advance(STEADY_S)
    await lab.publish(*[alice.event(30_000, str(number), [("d", "x"), LAB]) for number in range(4)])
    before = metrics_of(lab)
    assert f'posthouse_relay_sweep_age_seconds{{sweeper="retention"}} {STEADY_S}' in before
    assert f'posthouse_relay_sweep_age_seconds{{sweeper="queues"}} {STEADY_S}' in before
    assert (await set_limits(lab, versions=1)).status == 200
    await sweep(lab)
    clock.advance(5)
    text = metrics_of(lab)
    assert value_of(text, 'posthouse_relay_sweep_age_seconds{sweeper="retention"}') <= 5
    assert "posthouse_relay_events_swept_total 3.0" in text
    assert value_of(text, 'posthouse_relay_sweep_steps_total{sweeper="retention"}') >= 2


def metrics_of(edge: Edge) -> str:
    return edge.server.context.meters.render().decode()


def value_of(text: str, series: str) -> float:
    return float(text.partition(f"\n{series} ")[2].split()[0])


async def test_only_some_versions_of_a_coordinate_are_kept(lab: Edge, alice: Author) -> None:
    assert (await set_limits(lab, versions=2)).status == 200
    for d in ("x", "y"):
        await lab.publish(*[alice.event(30_000, f"{d}{number}", [("d", d), LAB]) for number in range(4)])
    await sweep(lab)
    assert await contents(lab, alice) == ["x2", "x3", "y2", "y3"]


async def test_archive_of_swept_events_can_be_proven(lab: Edge, alice: Author, clock: FakeClock) -> None:
    assert (await set_limits(lab, max_events=1, on_full="drop_oldest")).status == 200
    await publish(lab, alice.event(1, "a", [LAB]), alice.event(1, "b", [LAB]))
    assert (await prune_through(lab)).status == 200


async def test_members_of_a_mesh_share_its_rate(lab: Edge, alice: Author, bob: Author, clock: FakeClock) -> None:
    assert (await set_limits(lab, events_per_s=1)).status == 200
    events = [author.event(1, "x", [LAB]) for author in (alice, bob) for _ in range(3)]
    assert await publish(lab, *events) == ["201"] * 5 + ["mesh_rate_limited"]
    assert await publish(lab, events[0]) == ["200"], "a retry is free"
    clock.advance(1)
    assert await publish(lab, events[5]) == ["201"]


async def test_members_and_topics_of_a_mesh_are_limited(lab: Edge, alice: Author) -> None:
    assert (await set_limits(lab, max_members=1, max_topics=1)).status == 200
    token = await lab.token(lab.admin)
    assert (await lab.post("/v1/meshes/lab/topics", {"name": "a"}, token)).status == 201
    assert (await lab.post("/v1/meshes/lab/topics", {"name": "b"}, token)).code == "mesh_row_limit"
    member = {"node": alice.node, "name": "alice"}
    assert (await lab.post("/v1/meshes/lab/members", member, token)).code == "mesh_row_limit"


async def test_admin_of_a_mesh_sets_limits_within_what_the_relay_allows(lab: Edge, alice: Author, bob: Author) -> None:
    member = {"node": alice.node, "name": "alice", "role": "admin"}
    assert (await lab.post("/v1/meshes/lab/members", member, await lab.token(lab.admin))).status == 200
    assert (await set_limits(lab, "relay", alice, max_events=5)).code == "right_missing"
    assert (await set_limits(lab, "relay", max_events=5)).status == 200
    assert (await set_limits(lab, "mesh", alice, max_events=6)).code == "mesh_limit_too_high"
    reply = await set_limits(lab, "mesh", alice, max_events=4)
    assert reply.value["limits"] == {"max_events": 4}
    assert (await set_limits(lab, "relay", max_events=3)).value["limits"] == {"max_events": 3}, "the stricter one holds"
    assert (await set_limits(lab, "mesh", bob, max_events=1)).code == "right_missing"
    assert (await set_limits(lab, "mesh", alice, max_events=0)).code == "mesh_limit_invalid"
    ages = [{"first_kind": 9, "last_kind": 1, "max_age_s": 3_600}]
    assert (await set_limits(lab, "mesh", alice, max_age=ages)).code == "mesh_limit_invalid"


async def test_event_that_is_older_than_known_ids_is_refused(lab: Edge, alice: Author, clock: FakeClock) -> None:
    old = alice.event(1, "old", [LAB], clock.wall_ns() - 401 * DAY_S * 10**9)
    assert await publish(lab, old) == ["too_old"]
    assert await publish(lab, alice.event(1, "x", [LAB], clock.wall_ns() - 399 * DAY_S * 10**9)) == ["201"]


async def test_ids_of_archived_events_are_forgotten_when_they_would_be_refused(
    lab: Edge, alice: Author, clock: FakeClock
) -> None:
    note = alice.event(1, "note", [LAB])
    await lab.publish(note)
    assert (await prune_through(lab)).status == 200
    store = lab.server.context.engine.store
    await sweep(lab)
    assert note["id"] in await store.known([note["id"]])
    clock.advance(401 * DAY_S)
    await sweep(lab)
    assert await store.known([note["id"]]) == {}
    assert await publish(lab, note) == ["too_old"]


async def test_id_of_an_event_that_was_swept_and_not_archived_stays_known(
    lab: Edge, alice: Author, clock: FakeClock
) -> None:
    assert (await set_limits(lab, max_age=[{"first_kind": 1, "last_kind": 1, "max_age_s": 3_600}])).status == 200
    note = alice.event(1, "note", [LAB])
    await lab.publish(note)
    clock.advance(401 * DAY_S)
    await sweep(lab)
    await sweep(lab)
    assert await contents(lab, alice) == []
    assert note["id"] in await lab.server.context.engine.store.known([note["id"]]), "its record is in the journal"


async def test_tombstones_are_forgotten_when_what_they_stop_would_be_refused(
    lab: Edge, alice: Author, clock: FakeClock
) -> None:
    late, version = alice.event(1, "late", [LAB]), alice.event(30_000, "x", [LAB, ("d", "x")])
    named = [("e", late["id"]), ("a", f"30000:{alice.node}:x")]
    assert await publish(lab, alice.event(5, "", [LAB, *named])) == ["201"]
    address = address_term(Coordinate(30_000, alice.node, "x"))

    async def known() -> tuple[int, int]:
        store = lab.server.context.engine.store
        found = await store.submit(lambda unit: unit.find_tombstones([late["id"]], [address]))
        return len(found.ids), len(found.addresses)

    clock.advance(399 * DAY_S)
    await sweep(lab)
    assert await known() == (1, 1)
    assert await publish(lab, late, version) == ["event_deleted", "event_deleted"]
    clock.advance(2 * DAY_S)
    await sweep(lab)
    assert await known() == (0, 0)
    assert await publish(lab, late, version) == ["too_old", "too_old"]


async def test_suspended_mesh_lets_no_node_in_and_keeps_everything(lab: Edge, alice: Author, bob: Author) -> None:
    await lab.publish(alice.event(1, "kept", [LAB]))
    token = await lab.token(lab.admin)
    async with reading(lab, bob, "lab") as box:
        assert (await lab.post("/v1/meshes/lab/state", {"state": "suspended"}, token)).status == 200
        assert await box.next("END") == [1008]
    assert await publish(lab, alice.event(1, "x", [LAB])) == ["mesh_suspended"]
    assert (await lab.get("/v1/events?mesh=lab", await lab.token(alice))).code == "mesh_suspended"
    assert (await lab.post("/v1/meshes/lab/state", {"state": "active"}, token)).status == 200
    assert await contents(lab, alice) == ["kept"]
    assert (await lab.post("/v1/meshes/main/state", {"state": "suspended"}, token)).code == "mesh_needed"
    own = await lab.token(alice)
    assert (await lab.post("/v1/meshes/lab/state", {"state": "suspended"}, own)).code == "right_missing"


async def test_deleted_mesh_loses_everything_and_its_name_stays_taken(lab: Edge, alice: Author, bob: Author) -> None:
    token = await lab.token(lab.admin)
    await lab.post("/v1/meshes/lab/topics", {"name": "news"}, token)
    message = direct(alice, bob, "secret", None, LAB)
    await lab.publish(alice.event(1, "note", [LAB]), message, alice.event(1, "in main"))
    assert (await lab.send("DELETE", "/v1/meshes/lab", token=await lab.token(alice))).code == "right_missing"
    assert (await lab.send("DELETE", "/v1/meshes/lab", token=token)).status == 200
    assert await publish(lab, alice.event(1, "x", [LAB])) == ["mesh_deleted"]
    await sweep(lab)
    store = lab.server.context.engine.store
    rows = await store.find_contents([message["id"]])
    assert [(row.raw, row.is_erased) for row in rows] == [(None, True)]
    assert (await store.usage())["lab"].events == 0
    assert (await lab.post("/v1/meshes", {"name": "lab"}, token)).code == "mesh_deleted"
    assert [event["content"] for event in (await lab.get("/v1/events", token)).value["events"]] == ["in main"]
    totals = await store.deliveries.totals()
    assert totals.open_rows == 0


async def test_deletion_of_a_mesh_goes_on_after_a_restart(
    tmp_path: Path, clock: FakeClock, alice: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posthouse.relay.ops import retention_sweeper

    monkeypatch.setattr(retention_sweeper.RetentionSweeper, "wake", lambda _self: None)
    note = alice.event(1, "note", [LAB])
    async with checked(tmp_path / "relay", clock) as edge:
        token = await edge.token(edge.admin)
        await edge.post("/v1/meshes", {"name": "lab", "open": True}, token)
        await edge.publish(note)
        assert (await edge.send("DELETE", "/v1/meshes/lab", token=token)).status == 200
    async with checked(tmp_path / "relay", clock) as edge:
        assert await publish(edge, alice.event(1, "x", [LAB])) == ["mesh_deleted"]
        await sweep(edge)
        rows = await edge.server.context.engine.store.find_contents([note["id"]])
        assert [row.raw for row in rows] == [None]


async def test_limits_survive_a_restart(tmp_path: Path, clock: FakeClock, alice: Author) -> None:
    async with checked(tmp_path / "relay", clock) as edge:
        await edge.post("/v1/meshes", {"name": "lab", "open": True}, await edge.token(edge.admin))
        assert (await set_limits(edge, max_events=1)).status == 200
        await edge.publish(alice.event(1, "x", [LAB]))
    async with checked(tmp_path / "relay", clock) as edge:
        assert await publish(edge, alice.event(1, "y", [LAB])) == ["mesh_full"]


@pytest.mark.sqlite
async def test_running_relay_gives_free_space_back(lab: Edge, alice: Author) -> None:
    for _ in range(20):
        await lab.publish(alice.event(1, "x" * 60_000, [LAB]))
    token = await lab.token(lab.admin)
    assert (await lab.post("/v1/admin/delete", {"author": alice.node}, token)).value["erased"] == 20
    done = (await lab.post("/v1/admin/compact", {}, token)).value
    assert done["before"] - done["after"] > 1_000_000
    assert (await lab.post("/v1/admin/compact", {}, await lab.token(alice))).code == "right_missing"


async def test_metrics_show_what_is_stored_and_swept(lab: Edge, alice: Author) -> None:
    assert (await set_limits(lab, max_events=2)).status == 200
    await lab.publish(*[alice.event(30_000, str(number), [("d", "x"), LAB]) for number in range(2)])
    text = (await lab.get("/metrics", await lab.token(lab.admin))).body.decode()
    assert "posthouse_relay_stored_events 2.0" in text
    assert "posthouse_relay_meshes_full 1.0" in text
    assert (await set_limits(lab, max_events=2, versions=1)).status == 200
    await sweep(lab)
    text = (await lab.get("/metrics", await lab.token(lab.admin))).body.decode()
    assert "posthouse_relay_events_swept_total 1.0" in text
    assert "posthouse_relay_meshes_full 0.0" in text
