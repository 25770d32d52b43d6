"""Agents on the wire: the tags from and to are part of what a message is, and old stores and retries stay valid."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from posthouse.model.event import decode_event
from posthouse.model.message import message_fingerprint, read_message, without_agents
from posthouse.model.node import node_hex
from posthouse.relay.store.sqlite.deliveries import DELIVERIES
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked, findings
from tests.relay.messages.correspondents import Event, direct, post, reading, send


def addressed(sender: Author, reader: Author, c: str, from_: str = "", to: str = "", body: str = "same") -> Event:
    tags = [(name, agent) for name, agent in (("from", from_), ("to", to)) if agent]
    return direct(sender, reader, body, c, *tags)


async def test_same_id_and_body_to_another_agent_is_a_conflict_and_no_duplicate(
    edge: Edge, alice: Author, bob: Author
) -> None:
    first, second = (addressed(alice, bob, "c-1", to=agent) for agent in ("claude", "codex"))
    accepted, refused = await send(edge, first, second)
    assert (accepted.status, refused.status) == (201, 409)
    assert refused.value["conflict"] == "request_fingerprint_mismatch"


async def test_two_agents_of_a_host_may_use_the_same_id(edge: Edge, alice: Author, bob: Author) -> None:
    names = ("", "claude", "codex")
    messages = [addressed(alice, bob, "c-1", from_=name, to="gemini") for name in names]
    assert [reply.status for reply in await send(edge, *messages)] == [201, 201, 201]
    assert [reply.status for reply in await send(edge, *messages)] == [200, 200, 200]
    async with reading(edge, bob) as box:
        found = [event for event, _about in await box.delivered(3)]
    assert [event["id"] for event in found] == [message["id"] for message in messages]


async def test_retry_of_an_agent_signed_anew_gets_the_original_answer(edge: Edge, alice: Author, bob: Author) -> None:
    first, again = (addressed(alice, bob, "c-1", "claude", "codex") for _ in range(2))
    accepted, duplicate = await send(edge, first, again)
    assert first["id"] != again["id"]
    assert (duplicate.status, duplicate.value["id"]) == (200, accepted.value["id"])


async def test_state_of_a_message_names_both_agents(edge: Edge, alice: Author, bob: Author) -> None:
    message = addressed(alice, bob, "c-1", "claude", "codex")
    await send(edge, message)
    shown = (await edge.get(f"/v1/messages/{message['id']}", await edge.token(alice))).value
    assert (shown["from_agent"], shown["destination_ref"]) == ("claude", f"{node_hex(bob.node)}/codex")
    assert [each["recipient"] for each in shown["deliveries"]] == [bob.node]


@pytest.mark.parametrize("tag", [("from", "Claude"), ("to", "a/b"), ("from", ""), ("to", "x" * 33)])
async def test_a_tag_that_names_no_agent_is_malformed(
    edge: Edge, alice: Author, bob: Author, tag: tuple[str, str]
) -> None:
    (refused,) = await send(edge, direct(alice, bob, "x", "c-1", tag))
    assert (refused.status, refused.value["code"]) == (400, "message_malformed")


async def test_a_post_names_its_agent_and_is_for_none(edge: Edge, alice: Author) -> None:
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    accepted, refused = await send(
        edge, post(alice, "news", "x", "c-1", ("from", "claude")), post(alice, "news", "x", "c-2", ("to", "claude"))
    )
    assert (accepted.status, refused.status) == (201, 400)


def make_previous(path: Path) -> None:
    """Convert the dedupe records back to what they were before agents."""
    statement = re.search(r"CREATE TABLE message_records .*?;\n", DELIVERIES.migrations[1], re.DOTALL)
    assert statement is not None
    names = "seq, sender, client_message_id, fingerprint, topic, first_seen_at_ns, expires_at_ns, history_available"
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE message_records RENAME TO new_message_records")
    db.execute(statement[0])
    db.execute(f"INSERT INTO message_records ({names}) SELECT {names} FROM new_message_records")
    db.execute("DROP TABLE new_message_records; DROP TABLE receipts; DROP TABLE gaps")
    db.execute("DROP TRIGGER retired_keys_inserted; DROP TRIGGER retired_keys_updated")
    db.execute("UPDATE swept_records SET first_seen_through_ns = 0")
    db.execute("UPDATE schema_versions SET version = 2 WHERE component = 'deliveries'")
    db.close()


def make_older(path: Path, event: Event) -> None:
    """Make the record of a message what a relay that did not know agents had written."""
    signed = decode_event(apsw.Connection(str(path)).execute("SELECT raw FROM events WHERE kind = 1000").get)
    assert signed.id == event["id"]
    digest = message_fingerprint(without_agents(read_message(signed)), signed)
    make_previous(path)
    db = apsw.Connection(str(path))
    db.execute("UPDATE message_records SET fingerprint = ?", (digest,))
    changed = "json_remove(json_set(body, '$.fingerprint', ?, '$.destination_ref', ?), '$.from_agent')"
    recipient = dict(event["tags"])["p"].partition(":")[2]
    db.execute(f"UPDATE journal SET body = {changed} WHERE type = 'message.accepted'", (digest.hex(), recipient))
    db.execute("UPDATE journal_state SET body_bytes = 0, counted_through = 0")
    db.close()


@pytest.mark.sqlite
@pytest.mark.parametrize(("from_", "to"), [("claude", ""), ("", "codex"), ("claude", "codex")])
async def test_retry_across_an_upgrade_is_no_conflict_and_no_second_message(
    tmp_path: Path, from_: str, to: str
) -> None:
    alice, bob = Author(), Author()
    message = addressed(alice, bob, "c-1", from_, to)
    async with checked(tmp_path / "relay") as edge:
        (first,) = await send(edge, message)
    make_older(tmp_path / "relay" / FILE_NAME, message)
    async with checked(tmp_path / "relay") as edge:
        (again,) = await send(edge, message)
        assert (again.status, again.value["id"], again.value["seq"]) == (200, first.value["id"], first.value["seq"])
    assert findings(tmp_path / "relay") == []
