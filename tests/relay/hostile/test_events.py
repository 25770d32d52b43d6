"""Malformed events over HTTP and stream: each gets its code, none is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S, KNOWN_IDS_DAYS
from tests.relay.edge import Author, Edge, running

MINUTE_NS = 60 * 1_000_000_000
SOUND = Author()


def changed(**fields: Any) -> str:
    return json.dumps(SOUND.event(content="sound") | fields)


def without(field: str) -> str:
    event = SOUND.event()
    del event[field]
    return json.dumps(event)


def signed(*arguments: Any, **fields: Any) -> str:
    return json.dumps(SOUND.event(*arguments, **fields))


EVENTS: list[tuple[str, str]] = [
    ("[]", "event_not_object"),
    ("1", "event_not_object"),
    ('"text"', "event_not_object"),
    (without("id"), "event_field_missing"),
    (without("sig"), "event_field_missing"),
    (changed(more=1), "event_field_unknown"),
    (changed(id=1), "event_field_type"),
    (changed(kind="1"), "event_field_type"),
    (changed(kind=1.5), "event_field_type"),
    (changed(kind=True), "event_field_type"),
    (changed(created_at_ns="now"), "event_field_type"),
    (changed(created_at_ns=1e300), "event_field_type"),
    (changed(tags={}), "event_field_type"),
    (changed(tags=[["t", 1]]), "event_field_type"),
    (changed(tags=["t"]), "event_field_type"),
    (changed(content=None), "event_field_type"),
    (changed(id="0" * 63), "event_id_form"),
    (changed(id="A" * 64), "event_id_form"),
    (changed(id="0" * 64), "event_id_mismatch"),
    (changed(content="other"), "event_id_mismatch"),
    (changed(pubkey="ed25519:" + "A" * 64), "event_pubkey_form"),
    (changed(pubkey="0" * 64), "event_pubkey_form"),
    (changed(sig=""), "event_sig_form"),
    (changed(sig="A" * 128), "event_sig_form"),
    (changed(sig="0" * 128), "signature_invalid"),
    (changed(sig=SOUND.event()["sig"]), "signature_invalid"),
    (changed(created_at_ns=-1), "event_created_at_range"),
    (changed(kind=0), "kind_invalid"),
    (changed(kind=40_000), "kind_invalid"),
    (changed(kind=22242, id="0" * 64), "kind_not_publishable"),
    (changed(tags=[[]]), "tag_empty"),
    (changed(tags=[[""]]), "tag_empty"),
    (changed(tags=[["t"]] * 201), "tags_too_many"),
    (changed(tags=[["t", "x" * 8_193]]), "tag_value_too_long"),
    (changed(tags=[["mesh", "a"], ["mesh", "b"]]), "tag_repeated"),
    (changed(tags=[["mesh", "not a name"]]), "mesh_name_invalid"),
    (changed(tags=[["expiration", "soon"]]), "tag_malformed"),
    (changed(kind=30_000), "address_needs_d"),
    (changed(content="x" * 131_072), "event_too_large"),
    (signed(1, tags=[("expiration", "1")]), "event_expired"),
    (signed(1000, "no tags"), "message_malformed"),
    (signed(1, tags=[("mesh", "nowhere")]), "mesh_unknown"),
    (changed().replace('"kind"', '"kind": 2, "kind"'), "json_duplicate_key"),
]


@pytest.mark.parametrize(("text", "code"), EVENTS, ids=range(len(EVENTS)))
async def test_each_malformed_event_gets_its_code_over_http_and_stream(edge: Edge, text: str, code: str) -> None:
    reply = await edge.send("POST", "/v1/events", data=text.encode("utf-8", "surrogatepass"))
    by_http = reply.code
    async with edge.stream() as stream:
        await stream.socket.send_str(f'["EVENT", {text}]')
        _, is_accepted, problem = await stream.expect("OK")
    assert is_accepted is False
    assert problem["code"] == code
    if code != "event_not_object":  # a body that is not an object has a code of its own
        assert by_http == code
    token = await edge.token(edge.admin)
    assert (await edge.get("/v1/events/count", token)).value == {"count": 0}


@pytest.mark.parametrize("text", [changed(content="\ud800"), '{"id": ' + "[" * 20_000 + "]" * 20_000 + "}"])
async def test_text_that_is_not_json_is_refused_before_it_counts_as_an_event(edge: Edge, text: str) -> None:
    assert (await edge.send("POST", "/v1/events", data=text.encode())).code in ("json_invalid", "json_too_deep")
    async with edge.stream() as stream:
        await stream.socket.send_str(f'["EVENT", {text}]')
        assert await stream.notice() in ("json_invalid", "json_too_deep")


async def test_event_with_invalid_utf8_is_refused(edge: Edge, author: Author) -> None:
    data = json.dumps(author.event(content="MARK")).encode().replace(b"MARK", b"\xff\xfe")
    reply = await edge.send("POST", "/v1/events", data=data)
    assert (reply.status, reply.code) == (400, "json_invalid")


async def test_created_at_may_be_a_quarter_of_an_hour_ahead_and_a_retry_outlives_the_rule(tmp_path: Path) -> None:
    clock = FakeClock()
    author = Author(clock)
    async with running(tmp_path / "relay", clock) as edge:
        now = clock.wall_ns()
        limit = author.event(at_ns=now + 15 * MINUTE_NS)
        assert (await edge.post("/v1/events", limit)).status == 201
        assert (await edge.post("/v1/events", author.event(at_ns=now + 15 * MINUTE_NS + 1))).code == (
            "event_created_at_ahead"
        )
        oldest = now - KNOWN_IDS_DAYS * DAY_S * 10**9
        assert (await edge.post("/v1/events", author.event(at_ns=oldest))).status == 201
        assert (await edge.post("/v1/events", author.event(at_ns=oldest - 1))).code == "too_old"
        assert (await edge.post("/v1/events", author.event(at_ns=0))).code == "too_old"
        clock.step_wall(-3_600)
        retry = await edge.post("/v1/events", limit)
        assert (retry.status, retry.value["duplicate"]) == (200, True)


async def test_event_ends_with_its_expiration(tmp_path: Path) -> None:
    clock = FakeClock()
    author = Author(clock)
    async with running(tmp_path / "relay", clock) as edge:
        ends_s = clock.wall_ns() // 1_000_000_000 + 60
        event = author.event(tags=[("expiration", str(ends_s))])
        await edge.publish(event)
        token = await edge.token(author)
        assert (await edge.get(f"/v1/events/{event['id']}", token)).status == 200
        clock.advance(61)
        assert (await edge.get(f"/v1/events/{event['id']}", token)).code == "event_unknown"
        assert (await edge.get("/v1/events", token)).value["events"] == []
        assert (await edge.post("/v1/events", event)).status == 200
