"""Incoming hooks on each store: a request becomes a message of a member, once, within bounds, signed if from GitHub."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from posthouse.keys import NodeKey, open_sealed
from posthouse.relay.webhooks.incoming import render
from tests.relay.edge import Author, Edge, Reply
from tests.relay.webhooks.receivers import records_of


async def add_hook(edge: Edge, destination: str, **given: Any) -> Any:
    body = {"name": "github", "destination": destination, **given}
    reply = await edge.post("/v1/webhooks/incoming", body, await edge.token(edge.admin))
    assert reply.status == 201, reply.body
    return reply.value


async def call(edge: Edge, added: Any, data: bytes, **headers: str) -> Reply:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await edge.send("POST", added["path"], data=data, headers=given)


async def event_of(edge: Edge, reply: Reply, reader: Author) -> Any:
    assert reply.status == 202, reply.body
    return (await edge.get(f"/v1/events/{reply.value['id']}", await edge.token(reader))).value


def opened(event: Any, key: NodeKey) -> str:
    return open_sealed(key, event["pubkey"], "box", event["content"]).decode()


async def test_a_request_becomes_a_sealed_message_of_a_member_with_a_name(edge: Edge, author: Author) -> None:
    added = await add_hook(edge, author.node, to_agent="claude", template="{repo.name}: {commits.0.message}")
    body = json.dumps({"repo": {"name": "posthouse"}, "commits": [{"message": "mend"}]}).encode()
    event = await event_of(edge, await call(edge, added, body), author)
    tags = {tag[0]: tag[1] for tag in event["tags"]}
    assert (event["kind"], event["pubkey"], tags["p"], tags["to"]) == (
        1000,
        added["hook"]["node"],
        author.node,
        "claude",
    )
    assert opened(event, author.key) == "posthouse: mend"
    members = (await edge.get("/v1/meshes/main/members", await edge.token(edge.admin))).value["members"]
    assert {"node": event["pubkey"], "name": "github", "role": "member"} in members


async def test_a_request_to_a_topic_is_posted_in_the_clear(edge: Edge) -> None:
    token = await edge.token(edge.admin)
    await edge.post("/v1/meshes/main/topics", {"name": "builds"}, token)
    added = await add_hook(edge, "#builds", priority="now")
    event = await event_of(edge, await call(edge, added, b'{"text": "main is green"}'), edge.admin)
    assert event["content"] == "main is green"
    assert ["t", "builds"] in event["tags"] and ["priority", "now"] in event["tags"]


@pytest.mark.parametrize("header", ["X-GitHub-Delivery", "webhook-id", "Idempotency-Key"])
async def test_the_delivery_id_of_the_sender_makes_a_repeated_request_one_message(
    edge: Edge, author: Author, header: str
) -> None:
    added = await add_hook(edge, author.node)
    first = await call(edge, added, b'{"text": "once"}', **{header.replace("-", "_"): "d-1"})
    again = await call(edge, added, b'{"text": "once"}', **{header.replace("-", "_"): "d-1"})
    assert (first.value["duplicate"], again.value["duplicate"]) == (False, True)
    assert first.value["id"] == again.value["id"]
    assert ["c", "d-1"] in (await event_of(edge, first, author))["tags"]


async def test_github_signs_and_anything_else_is_refused(edge: Edge, author: Author) -> None:
    added = await add_hook(edge, author.node, github=True)
    body = b'{"text": "pushed"}'
    digest = hmac.new(added["github_secret"].encode(), body, hashlib.sha256).hexdigest()
    assert (await call(edge, added, body, X_Hub_Signature_256=f"sha256={digest}")).status == 202
    for headers in ({}, {"X_Hub_Signature_256": "sha256=" + "0" * 64}, {"X_Hub_Signature_256": digest}):
        reply = await call(edge, added, body, **headers)
        assert (reply.status, reply.code) == (403, "hook_signature_invalid")
    assert (await call(edge, added, body + b" ", X_Hub_Signature_256=f"sha256={digest}")).status == 403


async def test_size_rate_and_token_are_bounded(edge: Edge, author: Author) -> None:
    added = await add_hook(edge, author.node, max_bytes=20, rate_per_minute=2)
    assert (await call(edge, added, b'{"text": "far too long for it"}')).code == "request_too_large"
    codes = [(await call(edge, added, b'{"text": "x"}')).status for _ in range(4)]
    assert codes[:2] == [202, 202] and 429 in codes
    wrong = await edge.send("POST", "/v1/hooks/not-a-token", data=b"{}")
    assert (wrong.status, wrong.code) == (404, "hook_unknown")


async def test_plain_text_is_taken_and_broken_json_is_refused(edge: Edge, author: Author) -> None:
    added = await add_hook(edge, author.node)
    reply = await call(edge, added, b"disk is full", Content_Type="text/plain")
    assert opened(await event_of(edge, reply, author), author.key) == "disk is full"
    assert (await call(edge, added, b"{")).code == "json_invalid"


async def test_only_admins_add_and_see_hooks_and_a_removed_one_is_no_member_any_more(
    edge: Edge, author: Author
) -> None:
    body, token = {"name": "github", "destination": author.node}, await edge.token(author)
    assert (await edge.post("/v1/webhooks/incoming", body, token)).code == "right_missing"
    added = await add_hook(edge, author.node)
    admin_token = await edge.token(edge.admin)
    listed = (await edge.get("/v1/webhooks", admin_token)).value["incoming"]
    assert [each["id"] for each in listed] == [added["hook"]["id"]]
    assert (await edge.get("/v1/webhooks", token)).value["incoming"] == []
    path = f"/v1/webhooks/{added['hook']['id']}"
    assert (await edge.send("DELETE", path, token=token)).code == "webhook_unknown"
    assert (await edge.send("DELETE", path, token=admin_token)).status == 200
    assert (await call(edge, added, b"{}")).code == "hook_unknown"
    members = (await edge.get("/v1/meshes/main/members", admin_token)).value["members"]
    assert "github" not in [each["name"] for each in members]
    assert len(await records_of(edge, "webhook.in_added,webhook.in_removed")) == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"destination": "#nowhere"}, "topic_unknown"),
        ({"destination": "bob"}, "value_invalid"),
        ({"to_agent": "Not An Agent"}, "agent_name_invalid"),
        ({"name": "two words"}, "body_invalid"),
    ],
)
async def test_mistakes_are_refused_and_leave_no_member(
    edge: Edge, author: Author, given: dict[str, str], code: str
) -> None:
    admin_token = await edge.token(edge.admin)
    body = {"name": "github", "destination": author.node, **given}
    assert (await edge.post("/v1/webhooks/incoming", body, admin_token)).code == code
    members = (await edge.get("/v1/meshes/main/members", admin_token)).value["members"]
    assert "github" not in [each["name"] for each in members]


@pytest.mark.parametrize(
    ("template", "body", "text"),
    [
        ("", {"text": "hello"}, "hello"),
        ("", {"a": 1}, '{"a":1}'),
        ("{a.b.0}-{a.missing}-{header.X-Event}", {"a": {"b": ["x"]}}, "x--push"),
        ("{a}", {"a": {"b": 1}}, '{"b":1}'),
        ("{}", {"": "x"}, "{}"),
        ("{a.b.7}{a.b.x}", {"a": {"b": ["x"]}}, ""),
    ],
)
def test_a_template_is_filled_with_fields_of_the_request(template: str, body: Any, text: str) -> None:
    assert render(template, body, {"X-Event": "push"}) == text
