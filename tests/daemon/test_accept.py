"""The accept table, every cell of it, over the real socket: what a request gets when its id may have been seen."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posthouse.client import Published
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.message import DestinationKind, Priority, fingerprint, fingerprint_prefix, meta_field
from posthouse.model.node import node_hex
from tests.client.house import House
from tests.client.waiting import until
from tests.daemon.hosts import Host, Said

READER = NodeKey(b"r" * 32).node
OTHER = NodeKey(b"o" * 32).node
REQUEST: dict[str, Any] = {"to": READER, "message": "hello", "client_message_id": "id-1"}
CHANGES: dict[str, dict[str, Any]] = {
    "body": {"message": "another"},
    "destination": {"to": OTHER},
    "priority": {"priority": "now"},
    "meta": {"meta": {"a": 1}},
    "reply": {"reply_to_id": "a" * 64},
}
STATES = ("pending", "inflight", "done", "dead", "aborted")


async def never(_events: Sequence[Event]) -> list[Published | PosthouseError]:
    await asyncio.Event().wait()
    raise AssertionError


async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
    return [error("message_malformed", reason="for the test")] * len(events)


async def arrange(house: House, host: Host, state: str, **request: Any) -> None:
    """Send a request and bring its row into a state."""
    submits = {"inflight": never, "dead": refuse, "aborted": refuse}
    if state == "pending":
        await house.down()
        await until(lambda: not host.mesh.uplink.may_send)
    elif state in submits:
        host.mesh.drain._submit = submits[state]
    assert (await host.post("/v1/send", **request)).status == 202
    await host.until_status(request["client_message_id"], "dead" if state == "aborted" else state)
    if state == "aborted":
        assert (await host.post("/v1/outbox/drop", id=request["client_message_id"])).status == 200


async def all_rows(host: Host) -> Any:
    return (await host.get("/v1/outbox", limit=500))["items"]


def prefix(request: dict[str, Any]) -> str:
    """The fingerprint's first bytes, computed here from the request as it was sent."""
    digest = fingerprint(
        DestinationKind.DM,
        node_hex(request["to"]),
        request.get("reply_to_id"),
        Priority(request.get("priority") or "next"),
        meta_field(request.get("meta")),
        request["message"].encode(),
    )
    return fingerprint_prefix(digest)


async def test_first_send_with_an_id_is_queued_under_it(alice: Host) -> None:
    answer = await alice.post("/v1/send", **REQUEST)
    assert (answer.status, answer["status"], answer["client_message_id"]) == (202, "queued", "id-1")


async def test_first_send_without_an_id_gets_a_minted_one(alice: Host) -> None:
    answers = [await alice.send(READER, "hello") for _ in range(2)]
    assert [answer.status for answer in answers] == [202, 202]
    ids = {answer["client_message_id"] for answer in answers}
    assert len(ids) == 2
    assert all(len(each) == 26 for each in ids)


async def test_the_header_beats_the_body(alice: Host) -> None:
    answer = await alice.ask("POST", "/v1/send", json=REQUEST, headers={"Idempotency-Key": "from-header"})
    assert answer["client_message_id"] == "from-header"
    assert (await alice.get("/v1/outbox/id-1")).status == 404


SAME = {
    "pending": (202, {"status": "queued", "duplicate": False}),
    "inflight": (202, {"status": "inflight", "duplicate": False}),
    "done": (200, {"status": "done", "duplicate": True}),
}


@pytest.mark.parametrize("state", STATES)
async def test_the_same_request_again(house: House, alice: Host, state: str) -> None:
    await arrange(house, alice, state, **REQUEST)
    before = await all_rows(alice)
    answer = await alice.post("/v1/send", **REQUEST)
    assert answer["client_message_id"] == "id-1"
    if state in SAME:
        status, fields = SAME[state]
        assert answer.status == status
        assert answer.body.items() >= fields.items()
    else:
        assert_conflict(answer, f"outbox_{state}_fingerprint_match", REQUEST)
    if state == "done":
        row = await alice.row("id-1")
        assert answer["broker_message_id"] == row["broker_message_id"] == row["message_id"]
        assert answer["history_id"] == row["history_id"]
    if state == "dead":
        assert "message_malformed" in answer["reason"]
    assert await all_rows(alice) == before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("state", STATES)
async def test_another_request_under_the_same_id(house: House, alice: Host, state: str, change: str) -> None:
    await arrange(house, alice, state, **REQUEST)
    before = await all_rows(alice)
    request = REQUEST | CHANGES[change]
    answer = await alice.post("/v1/send", **request)
    assert_conflict(answer, f"outbox_{state}_fingerprint_mismatch", request)
    if state == "done":
        assert answer["broker_message_id"] == before[0]["broker_message_id"]
    assert await all_rows(alice) == before


def assert_conflict(answer: Said, conflict: str, request: dict[str, Any]) -> None:
    assert answer.status == 409
    assert answer["error"] == "idempotency_key_reused"
    assert answer["conflict"] == conflict
    assert answer["daemon_fingerprint_prefix"] == prefix(request)
    assert answer["client_message_id"] == "id-1"
    assert answer["hint"]


async def test_reordered_meta_keys_are_the_same_request(alice: Host) -> None:
    first = await alice.ask("POST", "/v1/send", data=_raw('{"b": 1, "a": {"y": 2, "x": 3}}'))
    again = await alice.ask("POST", "/v1/send", data=_raw('{"a": {"x": 3, "y": 2}, "b": 1}'))
    other = await alice.ask("POST", "/v1/send", data=_raw('{"a": {"x": 3, "y": 2}, "b": 2}'))
    assert first.status == 202
    assert again.status in (200, 202)
    assert other.status == 409


def _raw(meta: str) -> bytes:
    return f'{{"to": "{READER}", "message": "m", "client_message_id": "id-1", "meta": {meta}}}'.encode()


async def test_meta_absent_null_and_empty_are_the_same_request(alice: Host) -> None:
    given: list[dict[str, Any]] = [{}, {"meta": None}, {"meta": {}}]
    for meta in given:
        assert (await alice.post("/v1/send", **REQUEST, **meta)).status in (200, 202)


async def test_the_default_priority_is_next(alice: Host) -> None:
    assert (await alice.post("/v1/send", **REQUEST)).status == 202
    assert (await alice.post("/v1/send", **REQUEST, priority="next")).status in (200, 202)
    assert (await alice.post("/v1/send", **REQUEST, priority="low")).status == 409


async def test_mentions_are_outside_the_fingerprint(alice: Host) -> None:
    assert (await alice.post("/v1/send", **REQUEST)).status == 202
    assert (await alice.post("/v1/send", **REQUEST, mentions=[OTHER])).status in (200, 202)


REFUSED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "unknown recipient": (404, "member_name_unknown", {"to": "nobody"}),
    "unknown topic": (404, "topic_unknown", {"to": "#nowhere"}),
    "no point of the curve": (400, "node_id_invalid", {"to": "ed25519:" + "0" * 64}),
    "priority": (400, "value_invalid", {"priority": "urgent"}),
    "reply": (400, "id_invalid", {"reply_to_id": "abc"}),
    "too large": (413, "body_too_large", {"message": "x" * (48 * 1024 + 1)}),
    "unknown field": (400, "body_invalid", {"colour": "red"}),
    "no text": (400, "body_invalid", {"message": 7}),
    "meta is no object": (400, "body_invalid", {"meta": [1]}),
    "mention": (404, "member_name_unknown", {"mentions": ["nobody"]}),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_request_writes_nothing_and_leaves_its_id_free(alice: Host, case: str) -> None:
    status, code, change = REFUSED[case]
    answer = await alice.post("/v1/send", **(REQUEST | change))
    assert (answer.status, answer["error"]) == (status, code)
    assert (await alice.get("/v1/outbox"))["items"] == []
    assert (await alice.post("/v1/send", **REQUEST)).status == 202


@pytest.mark.parametrize("client_id", ["", "x" * 256, "a\nb", "a\x00b", "é" * 128])
async def test_an_id_that_is_no_id_is_refused(alice: Host, client_id: str) -> None:
    answer = await alice.post("/v1/send", **(REQUEST | {"client_message_id": client_id}))
    assert (answer.status, answer["error"]) == (400, "id_invalid")
    assert (await alice.get("/v1/outbox"))["items"] == []


@pytest.mark.parametrize("client_id", ["x", "x" * 255, "é" * 127, "mit Leerzeichen", "日本"])
async def test_an_odd_id_is_kept_as_it_is(alice: Host, client_id: str) -> None:
    answer = await alice.post("/v1/send", **(REQUEST | {"client_message_id": client_id}))
    assert (answer.status, answer["client_message_id"]) == (202, client_id)


async def test_fifty_posts_of_one_id_at_once_make_one_row(alice: Host, house: House) -> None:
    answers = await asyncio.gather(*(alice.post("/v1/send", **REQUEST) for _ in range(50)))
    assert {answer.status for answer in answers} <= {200, 202}
    assert len({answer["message_id"] for answer in answers}) == 1
    assert len((await alice.get("/v1/outbox"))["items"]) == 1
    await alice.until_status("id-1", "done")
    assert await alice.mesh.uplink.client.count({"kinds": [1000]}) == 1


async def test_fifty_different_requests_under_one_id_make_one_row(alice: Host) -> None:
    answers = await asyncio.gather(
        *(alice.post("/v1/send", **(REQUEST | {"message": f"m{number}"})) for number in range(50))
    )
    assert sorted(answer.status for answer in answers) == [202] + [409] * 49
    assert len((await alice.get("/v1/outbox"))["items"]) == 1


async def test_a_caller_that_goes_away_has_not_taken_its_message_back(alice: Host) -> None:
    body = json.dumps(REQUEST).encode()
    head = b"POST /v1/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    _reader, writer = await asyncio.open_unix_connection(str(alice.daemon.directory.socket))
    writer.write(head + body)
    writer.close()
    await writer.wait_closed()
    row = await alice.until_status("id-1", "done")
    assert row["destination"] == READER


async def test_fifty_processes_posting_one_id_at_once_make_one_row(alice: Host) -> None:
    program = Path(__file__).parent / "children" / "poster.py"
    command = (sys.executable, "-I", "-S", str(program), str(alice.daemon.directory.socket), json.dumps(REQUEST))
    pipe = asyncio.subprocess.PIPE
    posters = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(50)]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(poster.communicate(b"go\n") for poster in posters))
    statuses = [out.decode() for out, _err in answers]
    assert set(statuses) <= {"200", "202"}
    assert len((await alice.get("/v1/outbox"))["items"]) == 1
    await alice.until_status("id-1", "done")
    assert await alice.mesh.uplink.client.count({"kinds": [1000]}) == 1
