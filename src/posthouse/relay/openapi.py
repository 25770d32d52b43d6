"""The relay's table of routes, and the OpenAPI document of it.

docs/openapi.json is this document, committed as the contract with clients; a test keeps the two equal. If you change
a route or a type: 1. run `python -m posthouse.relay.openapi > docs/openapi.json`, 2. read the difference as a client
would.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta

from posthouse.http.openapi import ApiDescription, describe_api, encode_document
from posthouse.http.response import HttpResponse
from posthouse.http.router import Route
from posthouse.relay.asyncapi import STREAM_DOCUMENT_ROUTES
from posthouse.relay.context import NS_AS_TEXT, NS_HEADER, RelayCall
from posthouse.relay.http.auth_routes import AUTH_ROUTES, INVITE_ROUTES, JOIN_ROUTES
from posthouse.relay.http.event_routes import (
    ADDRESS_ROUTES,
    COUNT_ROUTES,
    EVENT_ROUTES,
    ONE_EVENT_ROUTES,
    POINTER_ROUTES,
)
from posthouse.relay.http.fence_rule_routes import FENCE_RULE_ROUTES
from posthouse.relay.http.follow_routes import FOLLOW_ROUTES
from posthouse.relay.http.key_routes import KEY_ROUTES
from posthouse.relay.http.lock_routes import LOCK_ROUTES
from posthouse.relay.http.mesh_control_routes import MESH_CONTROL_ROUTES
from posthouse.relay.http.mesh_routes import (
    ACCESS_ROUTES,
    BLOCK_ROUTES,
    MEMBER_ROUTES,
    MESH_ROUTES,
    SUBSCRIPTION_ROUTES,
    TOPIC_ROUTES,
)
from posthouse.relay.http.message_routes import MESSAGE_ROUTES, QUEUE_ROUTES
from posthouse.relay.http.mirror_routes import MIRROR_ROUTES
from posthouse.relay.http.operation_routes import (
    CLUSTER_ROUTES,
    DELETE_ROUTES,
    EXPORT_ROUTES,
    HEALTH_ROUTES,
    INFO_ROUTES,
    JOURNAL_ROUTES,
    METRICS_ROUTES,
    PRUNE_ROUTES,
)
from posthouse.relay.http.request_routes import REQUEST_ROUTES
from posthouse.relay.http.schemas import PATH_PARAMETERS
from posthouse.relay.http.webhook_routes import WEBHOOK_ROUTES
from posthouse.relay.stream.commands import STREAM_ROUTES
from posthouse.relay.stream.event_stream import EVENT_STREAM_ROUTES
from posthouse.version import __version__

_NS_MEANING = Meta(
    description="Write the numbers of fields that end in _ns as decimal text.",
    extra_json_schema={"enum": [NS_AS_TEXT]},
)
_API = ApiDescription(
    title="posthouse relay",
    version=__version__,
    description="Signed events, queries and meshes; the WebSocket is described in /asyncapi.json.",
    path_parameters=PATH_PARAMETERS,
    headers={NS_HEADER: Annotated[str, _NS_MEANING]},
    has_ns_text=True,
)


def describe_routes(routes: Sequence[Route[RelayCall]]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes of a relay."""
    return describe_api(routes, _API)


async def contract(call: RelayCall) -> HttpResponse:
    """Return the OpenAPI document of this version."""
    return HttpResponse(200, _document())


@lru_cache(maxsize=1)
def _document() -> bytes:
    return encode_document(describe_routes(ROUTES))


CONTRACT_ROUTES = (
    Route(
        "GET",
        "/openapi.json",
        contract,
        "Read the OpenAPI document",
        is_public=True,
        responses={200: dict[str, Any]},
    ),
)
ROUTES: tuple[Route[RelayCall], ...] = (
    *(*HEALTH_ROUTES, *INFO_ROUTES, *CONTRACT_ROUTES, *STREAM_DOCUMENT_ROUTES, *METRICS_ROUTES, *CLUSTER_ROUTES),
    *(*AUTH_ROUTES, *KEY_ROUTES),
    *(*EVENT_ROUTES, *COUNT_ROUTES, *ONE_EVENT_ROUTES, *ADDRESS_ROUTES, *POINTER_ROUTES),
    *(*STREAM_ROUTES, *EVENT_STREAM_ROUTES),
    *(*MESH_ROUTES, *MEMBER_ROUTES, *ACCESS_ROUTES, *TOPIC_ROUTES, *SUBSCRIPTION_ROUTES, *BLOCK_ROUTES),
    *(*FENCE_RULE_ROUTES, *INVITE_ROUTES, *JOIN_ROUTES, *LOCK_ROUTES, *MESSAGE_ROUTES, *QUEUE_ROUTES),
    *(*REQUEST_ROUTES, *WEBHOOK_ROUTES, *MESH_CONTROL_ROUTES),
    *(*JOURNAL_ROUTES, *EXPORT_ROUTES, *PRUNE_ROUTES, *DELETE_ROUTES, *FOLLOW_ROUTES, *MIRROR_ROUTES),
)

if __name__ == "__main__":
    sys.stdout.buffer.write(_document())
