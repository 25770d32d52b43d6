"""Publishing and reading events over HTTP."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.relay.edge import Author, Edge

NODE = "ed25519:" + "0" * 63 + "1"


async def test_event_is_created_once_and_found_again(edge: Edge, author: Author) -> None:
    event = author.event(content="first")
    created = await edge.post("/v1/events", event)
    again = await edge.post("/v1/events", event)
    assert (created.status, again.status) == (201, 200)
    assert created.value == {"id": event["id"], "seq": created.value["seq"], "duplicate": False}
    assert again.value == {"id": event["id"], "seq": created.value["seq"], "duplicate": True}
    token = await edge.token(author)
    assert (await edge.get(f"/v1/events/{event['id']}", token)).value == event | {"seq": created.value["seq"]}


async def test_ephemeral_event_is_passed_on_without_a_seq(edge: Edge, author: Author) -> None:
    reply = await edge.post("/v1/events", author.event(20_500))
    assert (reply.status, reply.value["seq"]) == (202, None)


async def test_list_answers_each_event_in_order(edge: Edge, author: Author) -> None:
    good, broken, ephemeral = author.event(), author.event() | {"sig": "0" * 128}, author.event(20_500)
    reply = await edge.post("/v1/events", {"events": [good, broken, good, ephemeral]})
    assert reply.status == 207
    results = reply.value["results"]
    assert [result["status"] for result in results] == [201, 400, 200, 202]
    assert results[1]["code"] == "signature_invalid"
    assert [result["id"] for result in results] == [good["id"], broken["id"], good["id"], ephemeral["id"]]


async def test_query_pages_in_commit_order_until_the_cursor_is_null(edge: Edge, author: Author) -> None:
    events = [author.event(content=str(number)) for number in range(7)]
    await edge.publish(*events)
    token = await edge.token(author)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        path = "/v1/events?limit=3" + (f"&cursor={quote(cursor)}" if cursor else "")
        page = (await edge.get(path, token)).value
        seen += [event["content"] for event in page["events"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert (seen, cursor) == ([str(number) for number in range(7)], None)


async def test_descending_query_begins_with_the_newest(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(5)))
    token = await edge.token(author)
    first = (await edge.get("/v1/events?order=desc&limit=2", token)).value
    rest = (await edge.get(f"/v1/events?order=desc&cursor={quote(first['cursor'])}", token)).value
    assert [event["content"] for event in first["events"] + rest["events"]] == ["4", "3", "2", "1", "0"]
    assert rest["cursor"] is None


async def test_query_filters_by_every_condition(edge: Edge, author: Author) -> None:
    other = Author()
    wanted = author.event(7, "wanted", [("t", "a,b"), ("t", "blue"), ("x-y", "é")])
    await edge.publish(wanted, author.event(8, tags=[("t", "red")]), other.event(7, tags=[("t", "red")]))
    token = await edge.token(author)
    at = wanted["created_at_ns"]
    for query in (
        f"ids={wanted['id']},{'0' * 64}",
        f"authors={author.node}&kinds=7",
        "%23t=blue",
        "%23t=green,blue",
        "%23x-y=%C3%A9",
        f"since_ns={at}&until_ns={at}&mesh=main",
    ):
        page = (await edge.get(f"/v1/events?{query}", token)).value
        assert [event["id"] for event in page["events"]] == [wanted["id"]], query
        assert (await edge.get(f"/v1/events/count?{query}", token)).value == {"count": 1}, query


@pytest.mark.parametrize(
    "d", ["", "name", "a/b", "history", "a/history", "50%", "k:v:w", "naïve ☕", "..", "a b+c", "%2F"]
)
async def test_coordinate_is_found_whatever_d_holds(edge: Edge, author: Author, d: str) -> None:
    old, new = author.event(30_000, "old", [("d", d)]), author.event(30_000, "new", [("d", d)])
    await edge.publish(new, old)
    token = await edge.token(author)
    base = f"/v1/events/address/30000/{author.node}"
    named = f"?d={quote(d, safe='')}"
    latest = await edge.get(base + named, token)
    assert latest.value["content"] == "new"
    by_path = base + "/" + quote(d, safe="").replace(".", "%2E")
    assert (await edge.get(by_path, token)).value["id"] == new["id"]
    for path in (by_path + "/history", base + "/history" + named):
        page = (await edge.get(path, token)).value
        assert [event["content"] for event in page["events"]] == ["new", "old"], path
        assert page["cursor"] is None


async def test_history_pages(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(10_500, str(number)) for number in range(5)))
    token = await edge.token(author)
    path = f"/v1/events/address/10500/{author.node}//history"
    first = (await edge.get(path + "?limit=3", token)).value
    rest = (await edge.get(f"{path}?limit=3&cursor={quote(first['cursor'])}", token)).value
    assert [event["content"] for event in first["events"] + rest["events"]] == ["0", "1", "2", "3", "4"]


async def test_unknown_events_and_coordinates_are_not_found(edge: Edge, author: Author) -> None:
    token = await edge.token(author)
    missing = await edge.get("/v1/events/" + "0" * 64, token)
    nowhere = await edge.get(f"/v1/events/address/30000/{author.node}/x", token)
    assert (missing.status, missing.code) == (404, "event_unknown")
    assert (nowhere.status, nowhere.code) == (404, "address_unknown")


@pytest.mark.parametrize("resource", ["db", "a/b c", "..", "50%"])
async def test_pointer_is_found_by_path_and_by_parameter(edge: Edge, author: Author, resource: str) -> None:
    token = await edge.token(author)
    grant = await edge.post("/v1/locks/acquire", {"resource": resource, "lease_ms": 60_000}, token)
    fence = ("fence", resource, str(grant.value["token"]))
    event = author.event(30_000, "v1", [("d", "x"), fence])
    assert (await edge.post("/v1/events", event)).value["current"] is True
    by_path = "/v1/pointers/" + quote(resource, safe="").replace(".", "%2E")
    for path in (by_path, f"/v1/pointers?mesh=main&resource={quote(resource, safe='')}"):
        assert (await edge.get(path, token)).value["id"] == event["id"]
    missing = await edge.get("/v1/pointers/nothing", token)
    assert (missing.status, missing.code) == (404, "pointer_unknown")
    assert (await edge.get(by_path)).code == "authentication_required"


FILTERS: list[tuple[str, str]] = [
    ("ids=xyz", "filter_invalid"),
    ("ids=", "filter_invalid"),
    ("ids=" + "A" * 64, "filter_invalid"),
    ("authors=" + NODE.upper(), "filter_invalid"),
    ("kinds=0", "filter_invalid"),
    ("kinds=40000", "filter_invalid"),
    ("kinds=1.5", "filter_invalid"),
    ("kinds=-1", "filter_invalid"),
    ("kinds=%D9%A1", "filter_invalid"),
    ("since_ns=-1", "filter_invalid"),
    ("since_ns=1e3", "filter_invalid"),
    ("since_ns=9223372036854775808", "filter_invalid"),
    ("limit=0", "filter_invalid"),
    ("limit=501", "filter_invalid"),
    ("limit=many", "filter_invalid"),
    ("mesh=a.b", "filter_invalid"),
    ("mesh=", "filter_invalid"),
    ("nonsense=1", "filter_invalid"),
    ("%23=1", "filter_invalid"),
    ("kinds=1&kinds=2", "filter_invalid"),
    ("order=sideways", "parameter_invalid"),
    ("order=asc&order=asc", "parameter_invalid"),
    ("cursor=abc", "cursor_invalid"),
    ("cursor=" + "A" * 32, "cursor_reset"),
    ("%23t=" + ",".join(map(str, range(501))), "filter_invalid"),
    ("mesh=nowhere", "mesh_unknown"),
    ("%zz=1", "path_invalid"),
    ("%23t=%ff", "path_invalid"),
]


@pytest.mark.parametrize(("query", "code"), FILTERS)
async def test_each_malformed_filter_gets_its_code(edge: Edge, author: Author, query: str, code: str) -> None:
    token = await edge.token(author)
    assert (await edge.get(f"/v1/events?{query}", token)).code == code


@pytest.mark.parametrize("path", ["/v1/events?limit=1&unknown=1", "/v1/events/count?limit=1", "/v1/journal?x=1"])
async def test_parameter_that_does_not_exist_is_refused(edge: Edge, path: str) -> None:
    token = await edge.token(edge.admin)
    assert (await edge.get(path, token)).status == 400


BODIES: list[tuple[bytes, str]] = [
    (b"", "json_invalid"),
    (b"nonsense", "json_invalid"),
    (b"[]", "body_invalid"),
    (b"1", "body_invalid"),
    (b'"text"', "body_invalid"),
    (b"{}", "event_field_missing"),
    (b'{"events": []}', "body_invalid"),
    (b'{"events": {}}', "body_invalid"),
    (b'{"events": [{}], "more": 1}', "body_invalid"),
    (b'{"events": [{}], "events": [{}]}', "json_duplicate_key"),
    (b"\xff\xfe", "json_invalid"),
    (b'{"id": NaN}', "json_invalid"),
    (b"{" * 100_000, "json_invalid"),
    (b'{"events":' + b"[" * 100_000, "json_too_deep"),
    (json.dumps({"events": [{}] * 501}).encode(), "body_invalid"),
]


@pytest.mark.parametrize(("data", "code"), BODIES)
async def test_each_malformed_body_gets_its_code(edge: Edge, data: bytes, code: str) -> None:
    reply = await edge.send("POST", "/v1/events", data=data, headers={"Content-Type": "application/json"})
    assert reply.status == 400
    assert reply.code == code


async def test_body_of_another_type_or_encoding_is_refused(edge: Edge) -> None:
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Content-Encoding": "gzip"}):
        reply = await edge.send("POST", "/v1/events", data=b"{}", headers=headers)
        assert (reply.status, reply.code) == (415, "media_type_unsupported")


async def test_events_of_other_meshes_are_not_shown(edge: Edge, author: Author) -> None:
    stranger = Author()
    token = await edge.token(author)
    assert (await edge.post("/v1/meshes", {"name": "closed", "open": False}, token)).status == 201
    secret = author.event(tags=[("mesh", "closed")])
    await edge.publish(secret)
    strange = await edge.token(stranger)
    assert (await edge.get(f"/v1/events/{secret['id']}", strange)).code == "event_unknown"
    assert (await edge.get("/v1/events?mesh=closed", strange)).code == "not_member"
    assert (await edge.get("/v1/events", strange)).value["events"] == []
    assert (await edge.get("/v1/events/count", strange)).value == {"count": 0}
    assert (await edge.get("/v1/events", token)).value["events"] == [
        secret | {"seq": _seq(await edge.get("/v1/events", token))}
    ]


def _seq(reply: Any) -> int:
    return int(reply.value["events"][0]["seq"])
