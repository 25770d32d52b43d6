"""The OpenAPI document of the local API: it is the committed one, and real requests and answers are as it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from posthouse.client.daemon.local_api import InboxItem
from posthouse.daemon.context import LocalCall
from posthouse.daemon.ipc.openapi import ROUTES, describe_local_api
from posthouse.daemon.wake import user_hooks
from posthouse.http.openapi import encode_document
from posthouse.model.clock import format_utc, system_clock
from posthouse.model.limits import SECOND_NS
from posthouse.model.user_hook import UserHook
from tests.client.house import House
from tests.daemon.hosts import Host, eventually, host_at

ROOT = Path(__file__).parents[3]
DOCUMENT = describe_local_api(ROUTES)
#: formats of their own: hooks answer in the words of a program, MCP is a protocol of its own
UNDESCRIBED = {"/v1/hooks/{program}/{event}", "/v1/mcp", "/mcp"}
#: its answer never ends
STREAM = ("GET", "/v1/events")


def test_committed_document_is_the_one_of_the_routes() -> None:
    assert (ROOT / "docs" / "openapi-daemon.json").read_bytes() == encode_document(DOCUMENT)


def test_every_route_is_described() -> None:
    assert {route.path for route in ROUTES if not route.responses} == UNDESCRIBED
    assert all(operation["summary"] for item in DOCUMENT["paths"].values() for operation in item.values())


class Checked:
    """A daemon whose answers are compared with the document, and the routes that were called."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.called: set[tuple[str, str]] = set()

    async def __call__(
        self, method: str, path: str, template: str | None = None, *, is_refused: bool = False, **options: Any
    ) -> Any:
        said = await self._host.ask(method, path, **options)
        template = template or path
        self.called.add((method, template))
        operation = DOCUMENT["paths"][template][method.lower()]
        expected = "default" if is_refused else str(said.status)
        assert expected in operation["responses"], (method, path, said.status, said.body)
        (media_type, content), *_ = operation["responses"][expected]["content"].items()
        assert said.headers["Content-Type"].startswith(media_type)
        if is_refused:
            assert said.status >= 400
            jsonschema.validate(said.body, {"components": DOCUMENT["components"], **content["schema"]})
        elif media_type == "application/json":
            check(said.body, content["schema"])
        return said.body


def check(value: Any, schema: dict[str, Any]) -> None:
    """Fail if a value is not as the schema says, or has a field that the schema does not name."""
    whole = {"components": DOCUMENT["components"], **schema}
    jsonschema.validate(value, whole)
    assert undeclared(value, schema) == []


def undeclared(value: Any, schema: dict[str, Any]) -> list[str]:
    schema = resolve(schema, value)
    if isinstance(value, list):
        return [name for each in value for name in undeclared(each, schema.get("items", {}))]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    inside = [name for key, each in value.items() if key in known for name in undeclared(each, known[key])]
    return [key for key in value if key not in known] + inside


def resolve(schema: dict[str, Any], value: Any) -> dict[str, Any]:
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if options and value is not None:
        schema = options[0]
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


@pytest.fixture
def read_types(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, str, str]]]:
    """What handlers read: method, path template, name of the type."""
    found: set[tuple[str, str, str]] = set()
    read_body, read_arguments = LocalCall.body, LocalCall.arguments

    async def body(call: Any, kind: Any) -> Any:
        found.add((call.route.method, call.route.path, kind.__name__))
        return await read_body(call, kind)

    def arguments(call: Any, kind: Any) -> Any:
        found.add((call.route.method, call.route.path, kind.__name__))
        return read_arguments(call, kind)

    monkeypatch.setattr(LocalCall, "body", body)
    monkeypatch.setattr(LocalCall, "arguments", arguments)
    yield found


async def test_real_requests_and_answers_are_as_the_document_says(
    house: House,
    bob: Host,
    tmp_path: Path,
    read_types: set[tuple[str, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_hooks, "_RETRY_S", (0.01, 0.01))
    async with host_at(house, "alice", hooks=(UserHook("h", "connected", "exit 1"),)) as alice:
        ask = Checked(alice)
        await use_messages(ask, house, alice, bob)
        await use_topics(ask)
        await use_locks_and_profile(ask)
        await use_agents(ask, tmp_path)
        await use_the_daemon(ask)
        await use_hooks(ask, alice)
    described = {(route.method, route.path) for route in ROUTES if route.responses}
    assert ask.called == described - {STREAM}
    declared = {
        (route.method, route.path, kind.__name__)
        for route in ROUTES
        for kind in (*route.bodies, *([] if route.query is None else [route.query]))
    }
    assert read_types == {each for each in declared if each[:2] != STREAM}


async def use_messages(ask: Checked, house: House, alice: Host, bob: Host) -> None:
    sent = await ask("POST", "/v1/send", json={"to": bob.node, "message": "hello"})
    await alice.until_status(sent["client_message_id"], "done")
    await bob.send(alice.node, "hello back", meta={"k": 1})
    await alice.until_bodies(1)
    page = await ask("GET", "/v1/inbox", params={"limit": 5, "reader": "r"})
    (item,) = page["items"]
    assert set(InboxItem.__struct_fields__) >= set(item)
    await ask("GET", f"/v1/inbox/{item['id']}", "/v1/inbox/{id}")
    await ask("GET", f"/v1/threads/{item['id']}", "/v1/threads/{id}")
    assert (await ask("GET", "/v1/threads", params={"limit": 5}))["items"]
    assert (await ask("GET", "/v1/traffic"))["items"]
    await ask("POST", "/v1/inbox/mark", json={"mark": page["mark"], "ids": [item["id"]]})
    await ask("POST", "/v1/inbox/seen", json={"ids": [item["id"]]})
    rows = (await ask("GET", "/v1/outbox", params={"limit": 5}))["items"]
    await ask("GET", f"/v1/outbox/{rows[0]['id']}", "/v1/outbox/{id}")
    await ask("GET", f"/v1/messages/{rows[0]['message_id']}", "/v1/messages/{id}")
    await ask("GET", "/v1/history", params={"with": bob.node})
    asked = await alice.send(bob.node, "hello?", request="queue", valid_until="2100-01-01T00:00:00Z")
    await bob.send(alice.node, "hello!", reply_to_id=asked["message_id"])
    params: dict[str, Any] = {"wait_s": 20}
    found = await ask("GET", f"/v1/answers/{asked['message_id']}", "/v1/answers/{id}", params=params)
    assert [answer["body"] for answer in found["items"]] == ["hello!"]
    await house.down()  # rows wait from now on
    for path in ("/v1/outbox/requeue", "/v1/outbox/drop", "/v1/messages/withdraw"):
        waiting = await alice.send(bob.node, f"for {path}")
        await ask("POST", path, json={"id": waiting["client_message_id"]})
    await house.up()
    await alice.connected()


async def use_topics(ask: Checked) -> None:
    await ask("POST", "/v1/topic/create", json={"topic": "builds"})
    await ask("POST", "/v1/topic/subscribe", json={"topic": "builds"})
    await ask("GET", "/v1/topic/list")
    await ask("POST", "/v1/topic/post", json={"topic": "builds", "message": "green"})
    await ask("POST", "/v1/topic/unsubscribe", json={"topic": "builds"})


async def use_locks_and_profile(ask: Checked) -> None:
    grant = await ask("POST", "/v1/locks/acquire", json={"resource": "db", "lease_ms": 30_000})
    held = {"resource": "db", "token": grant["token"]}
    await ask("POST", "/v1/locks/renew", json=held | {"lease_ms": 30_000})
    await ask("POST", "/v1/locks/release", json=held)
    await ask("GET", "/v1/peers")
    await ask("POST", "/v1/profile", json={"summary": "tests"})


async def use_agents(ask: Checked, tmp_path: Path) -> None:
    await ask("POST", "/v1/agents", json={"name": "ann", "capabilities": ["review"]})
    await ask("GET", "/v1/agents")
    await ask("GET", "/v1/agents/ann", "/v1/agents/{name}")
    until = format_utc(system_clock().wall_ns() + 3_600 * SECOND_NS)
    await ask("POST", "/v1/agents/pause", json={"names": ["ann"], "until": until})
    await ask("POST", "/v1/agents/resume", json={"names": ["ann"]})
    await ask("POST", "/v1/agents/on-mail", json={"name": "ann", "command": "true"})
    await ask("POST", "/v1/agents/rename", json={"name": "ann", "to": "anna"})
    await ask("POST", "/v1/reservations", json={"paths": [str(tmp_path)]}, params={"agent": "anna"})
    await ask("GET", "/v1/reservations")
    await ask("DELETE", "/v1/reservations", json={}, params={"agent": "anna"})
    await ask("POST", "/v1/agents/retire", json={"name": "anna"})


async def use_hooks(ask: Checked, alice: Host) -> None:
    await eventually(lambda: alice.get("/v1/event-hooks"), lambda said: bool(said["parked"]))
    await ask("GET", "/v1/event-hooks")
    await ask("POST", "/v1/event-hooks/parked", json={"hook": "h", "action": "drop"})


async def use_the_daemon(ask: Checked) -> None:
    for path in ("/v1/version", "/v1/health", "/v1/metrics", "/v1/meshes", "/v1/openapi.json"):
        await ask("GET", path)
    await ask("POST", "/v1/key/rotate", json={})
    await ask("POST", "/v1/meshes", json={"mesh": "other"}, is_refused=True)  # a daemon of the command line adds it
    await ask("DELETE", "/v1/meshes/other", "/v1/meshes/{mesh}")
