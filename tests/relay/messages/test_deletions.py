"""Deletions: an author takes its events back, an administrator removes any; on real sockets, and checked afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from posthouse.model.event import decode_event
from posthouse.relay.accept import deletions
from posthouse.relay.ops import deletion as orders
from posthouse.relay.store.event_rows import Scope, event_row
from tests.relay.archived import prune_through
from tests.relay.edge import Author, Edge, Reply
from tests.relay.messages.correspondents import direct, post, reading

DELETION = 5


def deletion(author: Author, ids: Sequence[str], *tags: Sequence[str], at_ns: int | None = None) -> dict[str, Any]:
    """Return a deletion of events by id, with further tags."""
    return author.event(DELETION, "", [*(("e", id_) for id_ in ids), *tags], at_ns)


async def found(edge: Edge, reader: Author, event: dict[str, Any]) -> Reply:
    return await edge.get(f"/v1/events/{event['id']}", await edge.token(reader))


async def current(edge: Edge, reader: Author, event: dict[str, Any], d: str) -> Reply:
    path = f"/v1/events/address/{event['kind']}/{event['pubkey']}"
    return await edge.get(f"{path}?d={d}", await edge.token(reader))


async def records(edge: Edge, kind: str) -> list[dict[str, Any]]:
    reply = await edge.get(f"/v1/journal?types={kind}", await edge.token(edge.admin))
    return [record["body"] | {"actor": record["actor"]} for record in reply.value["records"]]


async def test_deleted_event_is_gone_for_readers_and_its_bytes_cannot_come_again(
    edge: Edge, alice: Author, bob: Author
) -> None:
    note, kept = alice.event(1, "my address is ..."), alice.event(1, "hello")
    await edge.publish(note, kept)
    reply = await edge.post("/v1/events", deletion(alice, [note["id"]]))
    assert (reply.status, reply.value["deleted"]) == (201, 1)
    assert (await found(edge, bob, note)).code == "event_unknown"
    assert (await found(edge, bob, kept)).status == 200
    again = await edge.post("/v1/events", note)
    assert (again.status, again.value["duplicate"]) == (200, True), "its id stays known"
    assert (await found(edge, bob, note)).code == "event_unknown"


async def test_deletion_reaches_streams_as_an_event(edge: Edge, alice: Author, bob: Author) -> None:
    note = alice.event(1, "oops")
    await edge.publish(note)
    async with edge.stream(bob) as stream:
        await stream.send("REQ", "all", {}, {"kinds": [DELETION]})
        await stream.until("EOSE")
        await edge.publish(deletion(alice, [note["id"]]))
        (_, event, *_rest) = await stream.expect("EVENT")
    assert event["tags"] == [["e", note["id"]]]


async def test_event_of_another_author_stays(edge: Edge, alice: Author, bob: Author) -> None:
    note = alice.event(1, "mine")
    await edge.publish(note)
    reply = await edge.post("/v1/events", deletion(bob, [note["id"]]))
    assert reply.value["deleted"] == 0
    assert (await found(edge, bob, note)).status == 200


async def test_deletion_that_comes_first_blocks_its_target_of_the_same_author_only(
    edge: Edge, alice: Author, bob: Author
) -> None:
    late, other = alice.event(1, "late"), alice.event(1, "not deleted by its author")
    await edge.publish(deletion(alice, [late["id"]]), deletion(bob, [other["id"]]))
    assert (await edge.post("/v1/events", late)).code == "event_deleted"
    assert (await edge.post("/v1/events", other)).status == 201


async def test_deletion_and_its_target_in_one_list_take_effect_in_their_order(edge: Edge, alice: Author) -> None:
    first, second = alice.event(1, "first"), alice.event(1, "second")
    events = [first, deletion(alice, [first["id"]]), deletion(alice, [second["id"]]), second]
    reply = await edge.post("/v1/events", {"events": events}, await edge.token(alice))
    assert [each["status"] for each in reply.value["results"]] == [201, 201, 201, 410]
    assert (await found(edge, alice, first)).code == "event_unknown"


async def test_deleting_the_current_version_makes_no_older_one_current(edge: Edge, alice: Author, bob: Author) -> None:
    old, new = (alice.event(30_000, text, [("d", "x")]) for text in ("old", "new"))
    await edge.publish(old, new, deletion(alice, [new["id"]]))
    assert (await current(edge, bob, new, "x")).code == "address_unknown"
    assert (await found(edge, bob, old)).status == 200, "the older version itself is not deleted"
    late = alice.event(30_000, "between", [("d", "x")], new["created_at_ns"] - 1)
    await edge.publish(late)
    assert (await current(edge, bob, new, "x")).code == "address_unknown"
    await edge.server.context.engine.store.submit(lambda unit: unit.reindex())
    assert (await current(edge, bob, new, "x")).code == "address_unknown", "a rebuilt index says the same"
    newest = alice.event(30_000, "newest", [("d", "x")])
    await edge.publish(newest)
    assert (await current(edge, bob, new, "x")).value["content"] == "newest"


async def test_coordinate_loses_all_versions_so_far_and_older_ones_are_refused(
    edge: Edge, alice: Author, bob: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "VERSIONS_AT_ONCE", 2)
    versions = [alice.event(30_000, str(number), [("d", "x")]) for number in range(5)]
    await edge.publish(*versions)
    gone = alice.event(DELETION, "", [("a", f"30000:{alice.node}:x")])
    assert (await edge.post("/v1/events", gone)).value["deleted"] == 2
    assert (await current(edge, bob, gone | {"kind": 30_000}, "x")).code == "address_unknown"
    await edge.server.context.engine._housekeeping.run_once()
    assert [(await found(edge, bob, each)).status for each in versions] == [404] * 5
    early = alice.event(30_000, "early", [("d", "x")], gone["created_at_ns"] - 1)
    assert (await edge.post("/v1/events", early)).code == "event_deleted"
    late = alice.event(30_000, "late", [("d", "x")])
    await edge.publish(late)
    assert (await current(edge, bob, late, "x")).value["content"] == "late"
    erased = await records(edge, "content.erased")
    assert sorted(id_ for record in erased for id_ in record["ids"]) == sorted(each["id"] for each in versions)


async def test_deleted_message_is_not_delivered_and_its_retry_is_a_duplicate(
    edge: Edge, alice: Author, bob: Author
) -> None:
    secret, other = direct(alice, bob, "secret", "c-secret"), direct(alice, bob, "other")
    await edge.publish(secret, other)
    gone = deletion(alice, [secret["id"]], ("p", bob.node))
    assert (await edge.post("/v1/events", gone)).value["deleted"] == 1
    async with reading(edge, bob) as box:
        assert await box.bodies(1) == ["other"]
        assert not [each for each in await box.silence() if each[0] == "DELIVER"]
    token = await edge.token(alice)
    states = (await edge.get(f"/v1/messages/{secret['id']}", token)).value
    assert [each["state"] for each in states["deliveries"]] == ["purged"]
    assert states["history_available"] is False
    again = await edge.post("/v1/events", direct(alice, bob, "secret", "c-secret"))
    assert (again.status, again.value["id"]) == (200, secret["id"]), "its dedupe record stays"


async def test_deletion_of_a_direct_message_is_seen_by_its_two_ends_only(
    edge: Edge, alice: Author, bob: Author, carol: Author
) -> None:
    message = direct(alice, bob, "secret")
    await edge.publish(message)
    public = await edge.post("/v1/events", deletion(alice, [message["id"]]))
    assert public.code == "deletion_mismatch", "without a p tag every member would see it"
    gone = deletion(alice, [message["id"]], ("p", bob.node))
    await edge.publish(gone)
    assert [(await found(edge, each, gone)).status for each in (alice, bob, carol)] == [200, 200, 404]


async def test_deletion_in_another_mesh_is_refused(edge: Edge, alice: Author) -> None:
    token = await edge.token(alice)
    assert (await edge.post("/v1/meshes", {"name": "lab", "member_name": "alice"}, token)).status == 201
    note = alice.event(1, "in the lab", [("mesh", "lab")])
    await edge.publish(note)
    assert (await edge.post("/v1/events", deletion(alice, [note["id"]]))).code == "deletion_mismatch"


@pytest.mark.parametrize("tags", [[], [["e", "x"]], [["e"]], [["a", "1:2"]], [["p", "bob"], ["e", "0" * 64]]], ids=str)
async def test_malformed_deletion_is_refused(edge: Edge, alice: Author, tags: list[list[str]]) -> None:
    assert (await edge.post("/v1/events", alice.event(DELETION, "", tags))).code == "deletion_malformed"


async def test_coordinate_of_another_author_cannot_be_deleted(edge: Edge, alice: Author, bob: Author) -> None:
    foreign = alice.event(DELETION, "", [("a", f"30000:{bob.node}:x")])
    assert (await edge.post("/v1/events", foreign)).code == "deletion_malformed"


async def test_deletions_and_confirmations_cannot_be_deleted(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    await edge.publish(message)
    async with reading(edge, bob) as box:
        await box.delivered(1)
        (confirmed, *_rest) = await box.confirm(alice, message["id"])
    note = alice.event(1, "oops")
    gone = deletion(alice, [note["id"]])
    await edge.publish(note, gone)
    for author, id_ in ((alice, gone["id"]), (bob, confirmed)):
        assert (await edge.post("/v1/events", deletion(author, [id_]))).value["deleted"] == 0


async def test_kind_5_that_was_stored_before_has_no_effect(edge: Edge, alice: Author, bob: Author) -> None:
    note = alice.event(1, "stays")
    gone = deletion(alice, [note["id"]])
    await edge.publish(note)
    store = edge.server.context.engine.store
    event = decode_event(json.dumps(gone).encode())
    await store.submit(lambda unit: unit.add_events([event_row(event, event.canonical())]))
    await store.submit(lambda unit: unit.reindex())
    assert (await found(edge, bob, note)).status == 200


async def test_archive_that_holds_an_erased_event_can_still_prune(edge: Edge, alice: Author) -> None:
    note, kept = alice.event(1, "erase me"), alice.event(1, "keep me")
    await edge.publish(note, kept, deletion(alice, [note["id"]]))
    (erased,) = await records(edge, "content.erased")
    assert erased["ids"] == [note["id"]]
    assert erased["reason"] == "deleted"
    assert erased["actor"] == alice.node
    assert len(erased["digests"][0]) == 64
    assert (await prune_through(edge)).status == 200


async def test_administrator_deletes_by_author_and_readers_see_who_asked(
    edge: Edge, alice: Author, bob: Author, carol: Author
) -> None:
    token = await edge.token(edge.admin)
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, token)
    await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(bob))
    notes = [alice.event(1, str(number)) for number in range(3)]
    message, posted, others = direct(alice, bob, "secret"), post(alice, "news"), bob.event(1, "stays")
    await edge.publish(*notes, message, posted, others)
    asked = {"author": alice.node, "reason": "request 4711"}
    dry = await edge.post("/v1/admin/delete", asked | {"dry_run": True}, token)
    assert (dry.value["matched"], dry.value["erased"]) == (5, 0)
    assert (await found(edge, bob, notes[0])).status == 200
    done = await edge.post("/v1/admin/delete", asked, token)
    assert (done.value["matched"], done.value["erased"], done.value["through_seq"]) == (5, 5, None)
    assert [(await found(edge, bob, each)).status for each in (*notes, message, posted)] == [404] * 5
    assert (await found(edge, bob, others)).status == 200
    seen = (await edge.get(f"/v1/events?kinds={DELETION}", await edge.token(carol))).value["events"]
    assert [event["pubkey"] for event in seen] == [edge.relay]
    assert ["by", edge.admin.node] in seen[0]["tags"]
    assert message["id"] not in str(seen), "only its two ends learn of the direct message"
    for end in (alice, bob):
        known = (await edge.get(f"/v1/events?kinds={DELETION}", await edge.token(end))).value["events"]
        assert message["id"] in str(known)
    async with reading(edge, bob) as box:
        assert not [each for each in await box.silence() if each[0] == "DELIVER"]
    erased = await records(edge, "content.erased")
    assert {record["actor"] for record in erased} == {edge.admin.node}
    assert {record["reason"] for record in erased} == {"admin: request 4711"}
    again = await edge.post("/v1/admin/delete", asked, token)
    assert (again.value["matched"], again.value["erased"]) == (0, 0)


async def test_administrator_deletes_what_the_relay_itself_has_archived_already(edge: Edge, alice: Author) -> None:
    note = alice.event(1, "archived")
    await edge.publish(note)
    assert (await prune_through(edge)).status == 200
    done = await edge.post("/v1/admin/delete", {"ids": [note["id"]]}, await edge.token(edge.admin))
    assert (done.value["matched"], done.value["erased"]) == (1, 0)
    (erased,) = await records(edge, "content.erased")
    assert (erased["ids"], erased["digests"]) == ([note["id"]], [None]), "the lake learns that it has to erase it"


async def test_request_to_delete_needs_an_administrator_and_a_condition(edge: Edge, alice: Author) -> None:
    own = await edge.token(alice)
    assert (await edge.post("/v1/admin/delete", {"author": alice.node}, own)).code == "right_missing"
    token = await edge.token(edge.admin)
    assert (await edge.post("/v1/admin/delete", {}, token)).code == "parameter_invalid"
    assert (await edge.post("/v1/admin/delete", {"filter": {}}, token)).code == "parameter_invalid"
    assert (await edge.post("/v1/admin/delete", {"filter": {"what": 1}}, token)).code == "filter_invalid"


async def test_deletion_of_many_events_goes_on_where_it_stopped(
    edge: Edge, alice: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_SEQS_PER_READ", 4)
    monkeypatch.setattr(orders, "_MATCHED_MOST", 5)
    monkeypatch.setattr(orders, "DELETED_AT_ONCE", 3)
    await edge.publish(*[alice.event(1, str(number)) for number in range(20)])
    token, asked, total = await edge.token(edge.admin), {"author": alice.node, "after_seq": 0}, 0
    for _ in range(20):
        done = (await edge.post("/v1/admin/delete", asked, token)).value
        total += done["erased"]
        if done["through_seq"] is None:
            break
        asked["after_seq"] = done["through_seq"]
    assert total == 20
    assert await edge.server.context.engine.store.count([], Scope(alice.node, None)) == 0


async def test_only_the_relays_own_key_may_delete_for_an_administrator(edge: Edge, alice: Author, bob: Author) -> None:
    note = alice.event(1, "mine")
    await edge.publish(note)
    forged = bob.event(DELETION, "", [("e", note["id"]), ("by", edge.admin.node)])
    assert (await edge.post("/v1/events", forged)).value["deleted"] == 0
    assert (await found(edge, bob, note)).status == 200
