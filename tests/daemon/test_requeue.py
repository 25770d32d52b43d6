"""What an operator does with rows: requeue under a new id, patched or not, drop, and look at the chain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from posthouse.client import Published
from posthouse.daemon import drain
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from tests.client.house import House
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually

READER = NodeKey(b"r" * 32).node


async def dead_row(host: Host, client_id: str = "c", to: str = READER, **more: object) -> str:
    """Make a row the relay refused for good; return its id."""
    submit = host.mesh.drain._submit

    async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
        return [error("message_malformed", reason="x")] * len(events)

    host.mesh.drain._submit = refuse
    await host.send(to, "hello", client_message_id=client_id, **more)
    row = await host.until_status(client_id, "dead")
    host.mesh.drain._submit = submit
    return str(row["id"])


async def test_a_dead_row_is_replaced_by_a_new_one_that_arrives(alice: Host, bob: Host) -> None:
    row_id = await dead_row(alice, to=bob.node, meta={"a": 1}, priority="now")
    answer = await alice.post("/v1/outbox/requeue", id=row_id)
    assert answer.status == 200
    assert answer["aborted_row_id"] == row_id
    old = await alice.row(row_id)
    assert (old["status"], old["aborted_by"]) == ("aborted", "operator")
    assert old["aborted_at"]
    assert old["superseded_by"] == answer["new_row_id"]
    new = await alice.until_status(answer["new_client_message_id"], "done")
    assert new["destination"] == bob.node
    assert await bob.until_bodies(1) == ["hello"]
    [item] = (await bob.get("/v1/inbox"))["items"]
    assert (item["meta"], item["priority"]) == ({"a": 1}, "now")
    assert item["client_message_id"] == answer["new_client_message_id"]


async def test_a_patched_message_has_another_fingerprint_and_the_same_destination(alice: Host, bob: Host) -> None:
    row_id = await dead_row(alice, to=bob.node)
    answer = await alice.post("/v1/outbox/requeue", id=row_id, new_client_message_id="c2", message="patched")
    assert answer["new_client_message_id"] == "c2"
    assert await bob.until_bodies(1) == ["patched"]
    assert (await alice.send(bob.node, "patched", client_message_id="c2")).status in (200, 202)
    assert (await alice.send(bob.node, "hello", client_message_id="c2")).status == 409


async def test_a_pending_row_can_be_requeued(house: House, alice: Host) -> None:
    await house.down()
    await until(lambda: not alice.mesh.uplink.may_send)
    await alice.send(READER, "hello", client_message_id="c")
    answer = await alice.post("/v1/outbox/requeue", id="c", new_client_message_id="c2")
    assert answer.status == 200
    assert (await alice.get("/v1/health"))["queue_depth"] == 1
    await house.up()
    await alice.until_status("c2", "done")
    assert (await alice.row("c"))["status"] == "aborted"


async def test_a_message_that_the_relay_has_is_not_sent_again(
    alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "backoff_s", lambda *_given: 3600.0)
    submit = alice.mesh.drain._submit

    async def lose_answers(events: Sequence[Event]) -> list[Published | PosthouseError]:
        await submit(events)
        return [error("relay_unreachable", relay="x", reason="the answer was lost")] * len(events)

    alice.mesh.drain._submit = lose_answers
    await alice.send(bob.node, "hello", client_message_id="c")
    assert await bob.until_bodies(1) == ["hello"]
    row = await alice.until_status("c", "pending")
    answer = await alice.post("/v1/outbox/requeue", id="c", message="hello again")
    assert (answer.status, answer["error"]) == (409, "outbox_row_accepted")
    done = await alice.row("c")
    assert (done["status"], done["broker_message_id"]) == ("done", row["message_id"])


async def test_a_row_that_may_have_been_sent_is_not_requeued_while_the_relay_cannot_be_asked(
    house: House, alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "backoff_s", lambda *_given: 3600.0)

    async def fail(events: Sequence[Event]) -> list[Published | PosthouseError]:
        return [error("relay_unreachable", relay="x", reason="the connection was lost")] * len(events)

    alice.mesh.drain._submit = fail
    await alice.send(bob.node, "hello", client_message_id="c")
    await eventually(lambda: alice.row("c"), lambda row: row["status"] == "pending" and row["attempts"] > 0)
    await house.down()
    await until(lambda: not alice.mesh.uplink.may_send)
    answer = await alice.post("/v1/outbox/requeue", id="c")
    assert answer["error"] == "relay_unreachable"
    assert (await alice.row("c"))["status"] == "pending"


async def test_same_id_of_an_outbox_that_was_lost_is_the_same_message(alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "hello", client_message_id="c")
    first = await alice.until_status("c", "done")
    directory = alice.mesh.outbox.store.path.parent
    await alice.down()
    for file in directory.glob("outbox.db*"):
        file.unlink()
    await alice.up()
    await alice.send(bob.node, "hello", client_message_id="c")
    again = await alice.until_status("c", "done")
    assert (again["broker_message_id"], again["history_id"]) == (first["broker_message_id"], first["history_id"])
    assert again["message_id"] == first["message_id"], "the id that its readers know"
    assert await bob.until_bodies(1) == ["hello"]


@pytest.mark.parametrize("status", ["done", "aborted"])
async def test_other_rows_cannot_be_requeued_or_dropped(alice: Host, status: str) -> None:
    if status == "done":
        await alice.send(READER, "hello", client_message_id="c")
        await alice.until_status("c", "done")
    else:
        await dead_row(alice)
        await alice.post("/v1/outbox/drop", id="c")
    for path in ("/v1/outbox/requeue", "/v1/outbox/drop"):
        answer = await alice.post(path, id="c")
        assert (answer.status, answer["error"]) == (409, "outbox_row_state")
    assert (await alice.row("c"))["status"] == status


async def test_an_id_that_is_taken_rolls_everything_back(alice: Host) -> None:
    await alice.send(READER, "other", client_message_id="taken")
    await alice.until_status("taken", "done")
    row_id = await dead_row(alice)
    before = (await alice.get("/v1/outbox"))["items"]
    answer = await alice.post("/v1/outbox/requeue", id=row_id, new_client_message_id="taken")
    assert (answer.status, answer["error"]) == (409, "idempotency_key_reused")
    assert answer["conflict"] == "outbox_done_fingerprint_mismatch"
    assert (await alice.get("/v1/outbox"))["items"] == before


async def test_a_row_cannot_be_requeued_under_its_own_id(alice: Host) -> None:
    row_id = await dead_row(alice)
    answer = await alice.post("/v1/outbox/requeue", id=row_id, new_client_message_id="c")
    assert (answer.status, answer["error"]) == (409, "idempotency_key_reused")
    assert (await alice.row("c"))["status"] == "dead"


async def test_a_dropped_row_has_no_successor_and_its_id_is_not_free(alice: Host) -> None:
    row_id = await dead_row(alice)
    assert (await alice.post("/v1/outbox/drop", id=row_id))["aborted_row_id"] == row_id
    row = await alice.row(row_id)
    assert (row["status"], row["superseded_by"]) == ("aborted", None)
    assert (await alice.send(READER, "hello", client_message_id="c")).status == 409


async def test_inspect_shows_the_chain_from_any_of_its_rows(alice: Host) -> None:
    ids = [await dead_row(alice)]

    async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
        return [error("message_malformed", reason="x")] * len(events)

    alice.mesh.drain._submit = refuse
    for number in range(3):
        answer = await alice.post("/v1/outbox/requeue", id=ids[-1], new_client_message_id=f"again-{number}")
        await alice.until_status(f"again-{number}", "dead")
        ids.append(answer["new_row_id"])
    for key in ids:
        assert [row["id"] for row in (await alice.row(key))["chain"]] == ids


async def test_an_unknown_row_is_refused_with_its_code(alice: Host) -> None:
    for path in ("/v1/outbox/requeue", "/v1/outbox/drop"):
        assert (await alice.post(path, id="nothing")).status == 404


async def test_rows_are_listed_by_status_newest_first(alice: Host) -> None:
    for number in range(3):
        await alice.send(READER, "hello", client_message_id=f"c{number}")
        await alice.until_status(f"c{number}", "done")
    await dead_row(alice, "d")
    done = (await alice.get("/v1/outbox", status="done"))["items"]
    assert [row["client_message_id"] for row in done] == ["c2", "c1", "c0"]
    assert [row["client_message_id"] for row in (await alice.get("/v1/outbox", limit=2))["items"]] == ["d", "c2"]
    assert [row["status"] for row in (await alice.get("/v1/outbox", status="dead"))["items"]] == ["dead"]
