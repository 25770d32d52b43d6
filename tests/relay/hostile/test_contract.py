"""The OpenAPI document and the relay agree: requests made from it, valid or not, pass every check of schemathesis."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from posthouse.relay.openapi import ROUTES, describe_routes
from tests.http.agreement import Served, ServerThread, agreement_tests
from tests.relay.edge import running

STREAMS = ("/v1/stream", "/v1/events/stream")  # a WebSocket, and an answer without an end
SIGNED = "no generated event has the signature of its author"
POINT = "a node id is a point of the prime-order group"
PRINTABLE = "session and request_id are printable, which no regular expression of JSON Schema says"
RULES_BEYOND_SCHEMAS = {
    "POST /v1/events": SIGNED,
    "POST /v1/auth": SIGNED,
    "POST /v1/join": SIGNED,
    "POST /v1/request": SIGNED,
    "POST /v1/auth/challenge": POINT,
    "POST /v1/keys/rotations": SIGNED,
    "POST /v1/keys/replacements": POINT,
    "POST /v1/keys/revocations": POINT,
    "POST /v1/locks/acquire": PRINTABLE,
    "POST /v1/locks/renew": PRINTABLE,
    "POST /v1/locks/release": PRINTABLE,
    "GET /v1/locks": "a cursor of this list is the place in it, encoded",
    "GET /v1/journal": "after goes with one order, before with the other",
    "POST /v1/meshes/{mesh}/fence-rules": "a replaceable kind has no d tag, so no prefix",
    "POST /v1/meshes/{mesh}/limits": "a range of kinds ends behind its beginning",
    "POST /v1/admin/delete": "at least one of the conditions is given",
    "POST /v1/mirror/{mesh}/compare": "the message has a binary form of its own",
    "POST /v1/mirror/{mesh}/read": "a cursor names its store and epoch, and a filter has authors, kinds and times only",
    "POST /v1/webhooks": "the relay looks up the host of the URL",
}
DOCUMENT = describe_routes([route for route in ROUTES if route.path not in STREAMS])
globals().update(agreement_tests(DOCUMENT, RULES_BEYOND_SCHEMAS))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    @asynccontextmanager
    async def relay() -> AsyncIterator[Served]:
        async with running(tmp_path_factory.mktemp("contract") / "relay") as edge:
            yield Served(edge.url, await edge.token(edge.admin))

    with ServerThread(relay) as started:
        yield started


def test_every_reference_of_the_document_names_a_schema() -> None:
    named = set(re.findall(rb'"#/components/schemas/([^"]+)"', msgspec.json.encode(DOCUMENT)))
    assert named
    assert named <= {name.encode() for name in DOCUMENT["components"]["schemas"]}
