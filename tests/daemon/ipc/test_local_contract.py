"""The OpenAPI document and the daemon agree: requests made from it, valid or not, pass every check of schemathesis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import schemathesis

from posthouse.client.daemon.locate import MESH_HEADER
from posthouse.daemon.ipc.openapi import ROUTES, describe_local_api
from posthouse.model.address import AGENT_HEADER, is_agent_name
from posthouse.model.limits import INT64_MAX
from posthouse.model.node import is_mesh_name
from tests.client.house import open_house
from tests.daemon.hosts import host_at
from tests.http.agreement import Served, ServerThread, agreement_tests

STREAM = "/v1/events"  # an answer without an end
FRESH = "a time until when a message counts, and a request that needs one, lie in the future; meta has no large numbers"
RULES_BEYOND_SCHEMAS = {
    "POST /v1/send": FRESH,
    "POST /v1/topic/post": FRESH,
    "POST /v1/agents/pause": "a pause ends in the future, and some agent is named",
    "POST /v1/agents/resume": "some agent is named",
    "POST /v1/inbox/seen": "either ids, or conditions, or all",
    "GET /v1/inbox": "a reader with a mark gets mail oldest first",
    "GET /v1/answers/{id}": "the message was sent as a request",
    "GET /v1/traffic": "a time fits into 64 bits of nanoseconds",
    "GET /v1/history": "either a topic or a peer, and a cursor is one that the relay gave",
    "POST /v1/locks/acquire": "request_id is printable, which no regular expression of JSON Schema says",
    "POST /v1/reservations": "with repo, the paths are in a repository",
    "POST /v1/event-hooks/parked": "the hook is one of the settings",
    "POST /v1/profile": "an agent has a summary, a status and capabilities; the rest is its host's",
}
DOCUMENT = describe_local_api([route for route in ROUTES if route.path != STREAM])


def name_what_exists(case: schemathesis.Case[Any]) -> None:
    """Let a request name its mesh once, one that exists, act for an agent that exists, and not wait."""
    headers, body = case.headers, cast(Any, case.body)
    if is_agent_name(str(headers.get(AGENT_HEADER, ""))):
        headers[AGENT_HEADER] = "ann"
    if is_mesh_name(str(headers.get(MESH_HEADER, ""))):
        headers[MESH_HEADER] = "main"
    if "wait_s" in case.query:
        case.query["wait_s"] = 0
    if not isinstance(body, dict):
        return
    mesh, wait_ms = body.get("mesh"), body.get("wait_ms")
    if isinstance(mesh, str) and is_mesh_name(mesh) and case.operation.path != "/v1/meshes":
        body["mesh"] = "main"
    if isinstance(wait_ms, int) and 0 < wait_ms <= INT64_MAX:
        body["wait_ms"] = 0


globals().update(agreement_tests(DOCUMENT, RULES_BEYOND_SCHEMAS, name_what_exists))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    @asynccontextmanager
    async def daemon() -> AsyncIterator[Served]:
        async with open_house(tmp_path_factory.mktemp("contract")) as house, host_at(house, "a", tcp="on") as host:
            await host.add_agent("ann")
            token = (host.settings.directory / "local_token").read_text().strip()
            yield Served(f"http://127.0.0.1:{host.daemon.port}", token)

    with ServerThread(daemon) as started:
        yield started
