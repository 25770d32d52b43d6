"""MCP over HTTP: what each version of the protocol asks of it, and how it keeps out web pages and other users."""

from __future__ import annotations

import asyncio
import stat
from typing import Any

import httpx2
import pytest

from posthouse.mcp import protocol
from tests.client.waiting import until
from tests.daemon.hosts import Host, restart
from tests.mcp.agents import BOUND_S, authorization, http_agent, url_of

ABOUT = {"name": "test-client", "version": "1"}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": ABOUT},
}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": ABOUT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def post(
    host: Host, body: Any = HELLO, headers: dict[str, str] | None = None, query: str = ""
) -> httpx2.Response:
    given = authorization(host) if headers is None else headers
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S)) as http:
        return await http.post(url_of(host) + query, json=body, headers=ACCEPT | given)


def stateless(method: str, **params: Any) -> dict[str, Any]:
    """Return a request of the version without a handshake."""
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": META}}


async def test_every_request_needs_the_token_the_host_and_no_foreign_origin(alice: Host) -> None:
    right = authorization(alice)
    token = right["Authorization"].removeprefix("Bearer ")
    port = alice.daemon.port
    assert (await post(alice)).status_code == 200
    assert (await post(alice, headers=right | {"Origin": f"http://localhost:{port}"})).status_code == 200
    local_token = (alice.settings.directory / "local_token").read_text().strip()
    cases: list[tuple[dict[str, str], str, int, str]] = [
        ({}, "", 401, "mcp_token_missing"),
        ({"Authorization": "Bearer wrong"}, "", 401, "mcp_token_wrong"),
        ({"Authorization": f"Basic {token}"}, "", 401, "mcp_token_wrong"),
        ({"Authorization": f"Bearer {token}x"}, "", 401, "mcp_token_wrong"),
        ({"Authorization": f"Bearer {local_token}"}, "", 401, "mcp_token_wrong"),
        ({}, f"?token={token}", 400, "token_in_query"),
        (right, f"?token={token}", 400, "token_in_query"),
        (right | {"Host": "evil.example"}, "", 403, "host_refused"),
        (right | {"Host": f"127.0.0.1.evil.example:{port}"}, "", 403, "host_refused"),
        (right | {"Origin": "https://evil.example"}, "", 403, "origin_refused"),
        (right | {"Origin": "null"}, "", 403, "origin_refused"),
        (right | {"Origin": "http://localhost:1"}, "", 403, "origin_refused"),
    ]
    for headers, query, status, code in cases:
        answer = await post(alice, headers=headers, query=query)
        assert (answer.status_code, answer.json()["error"]) == (status, code), (headers, query)
        assert answer.json()["hint"]
        assert "access-control-allow-origin" not in answer.headers


async def test_the_token_for_the_tools_opens_nothing_else(alice: Host) -> None:
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S), headers=authorization(alice)) as http:
        base = url_of(alice).removesuffix("/mcp")
        for path in ("/v1/inbox", "/v1/version", "/v1/mcp"):
            answer = await http.get(base + path)
            assert (answer.status_code, answer.json()["error"]) == (401, "local_token_wrong"), path


async def test_the_token_is_private_and_stays_the_same(alice: Host) -> None:
    path = alice.settings.directory / "mcp_token"
    token = path.read_text()
    assert len(token.strip()) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await restart(alice)
    assert path.read_text() == token


async def test_the_port_is_a_setting(alice: Host) -> None:
    port = alice.daemon.port
    await restart(alice, port=port)
    assert alice.daemon.port == port
    assert (await post(alice)).status_code == 200


async def test_a_body_that_is_too_large_is_refused(alice: Host) -> None:
    answer = await post(alice, {"x": "y" * (1 << 20)})
    assert (answer.status_code, answer.json()["error"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([HELLO], protocol.INVALID_REQUEST),
        ("hello", protocol.INVALID_REQUEST),
        ({"id": 1, "method": "ping"}, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, protocol.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, protocol.INVALID_PARAMS),
    ],
)
async def test_a_body_that_is_no_request_gets_an_error_of_the_protocol(body: Any, code: int, alice: Host) -> None:
    answer = await post(alice, body)
    assert answer.status_code == 400
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (None, code)


@pytest.mark.parametrize(
    ("asked", "given"), [("2024-11-05", "2024-11-05"), ("2025-11-25",) * 2, ("1999", "2025-11-25")]
)
async def test_the_handshake_agrees_on_a_version(asked: str, given: str, alice: Host) -> None:
    hello = HELLO | {"params": HELLO["params"] | {"protocolVersion": asked}}
    result = (await post(alice, hello)).json()["result"]
    assert result["protocolVersion"] == given
    assert result["serverInfo"]["name"] == "posthouse"


async def test_a_session_goes_on_after_a_restart_of_the_daemon(alice: Host) -> None:
    async with http_agent(alice, mode="legacy") as agent:
        before = (await agent.call("who"))["you"].partition("@")[0]  # the host's name comes with the roster
        await restart(alice, port=alice.daemon.port)
        assert (await agent.call("who"))["you"].partition("@")[0] == before


async def test_a_session_id_that_is_none_is_unknown(alice: Host) -> None:
    answer = await post(alice, headers=authorization(alice) | {"Mcp-Session-Id": "../../x"})
    assert (answer.status_code, answer.json()["error"]) == (404, "mcp_session_unknown")


async def test_notifications_are_accepted_and_there_is_no_stream_to_get(alice: Host) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    answer = await post(alice, note)
    assert (answer.status_code, answer.content) == (202, b"")
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S), headers=authorization(alice)) as http:
        refused = await http.get(url_of(alice), headers={"Accept": "text/event-stream"})
        assert (refused.status_code, refused.headers["Allow"]) == (405, "POST, DELETE")


async def test_the_end_of_a_session_ends_its_calls(alice: Host) -> None:
    session = authorization(alice) | {"Mcp-Session-Id": f"test.{'0' * 32}"}
    call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "wait", "arguments": {"seconds": 50}}}
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(post(alice, call, session))
        await until(lambda: alice.daemon.context.waiters.count == 1)
        async with httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND_S), headers=session) as http:
            assert (await http.delete(url_of(alice))).status_code == 204
        assert (await waiting).status_code == 202
    await until(lambda: alice.daemon.context.waiters.count == 0)


async def test_headers_of_the_newest_version_must_say_what_the_body_says(alice: Host) -> None:
    request = stateless("tools/call", name="inbox", arguments={})
    right = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "inbox"}
    answer = await post(alice, request, authorization(alice) | right)
    assert answer.status_code == 200
    result = answer.json()["result"]
    assert result["resultType"] == "complete"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "posthouse"
    assert "Mcp-Session-Id" not in answer.headers
    for name in right:
        for headers in (right | {name: "other"}, {key: value for key, value in right.items() if key != name}):
            refused = await post(alice, request, authorization(alice) | headers)
            assert refused.status_code == 400, headers
            assert refused.json()["error"]["code"] == protocol.HEADER_MISMATCH, headers


@pytest.mark.parametrize(
    ("method", "meta", "status", "code"),
    [
        ("tools/sing", META, 404, protocol.METHOD_NOT_FOUND),
        ("ping", META, 404, protocol.METHOD_NOT_FOUND),
        ("tools/list", META | {protocol.VERSION_META: "2031-01-01"}, 400, protocol.UNSUPPORTED_VERSION),
        ("tools/list", {protocol.VERSION_META: "2026-07-28"}, 400, protocol.INVALID_PARAMS),
    ],
)
async def test_requests_of_the_newest_version_that_cannot_be_served_have_a_status(
    method: str, meta: dict[str, Any], status: int, code: int, alice: Host
) -> None:
    headers = {"MCP-Protocol-Version": meta[protocol.VERSION_META], "Mcp-Method": method}
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"_meta": meta}}
    answer = await post(alice, request, authorization(alice) | headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_program_over_http_is_the_agent_that_its_address_names(alice: Host) -> None:
    async with http_agent(alice, query="?as=reviewer") as agent:
        assert (await agent.call("who"))["you"] == "reviewer@alice"
    async with http_agent(alice, "legacy", query="?as=reviewer") as agent:
        assert (await agent.call("who"))["you"] == "reviewer@alice"


async def test_a_message_carries_the_span_of_the_call_that_sends_it(alice: Host, bob: Host) -> None:
    spans = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]
    calls: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"traceparent": spans[0]}, {}),  # of the HTTP request
        ({"traceparent": spans[0]}, {"traceparent": spans[1]}),  # of the call in it
        ({}, {"traceparent": "no span"}),
    ]
    for number, (headers, meta) in enumerate(calls):
        request = stateless("tools/call", name="send", arguments={"to": "bob", "message": str(number)})
        request["params"]["_meta"] = META | meta
        named = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "send"}
        said = await post(alice, request, authorization(alice) | named | headers, "?as=tracer")
        assert not said.json()["result"].get("isError"), said.text
    await bob.until_bodies(3)
    items = (await bob.get("/v1/inbox", limit=10))["items"]
    assert {item["body"]: item["traceparent"] for item in items} == {"0": spans[0], "1": spans[1], "2": None}
