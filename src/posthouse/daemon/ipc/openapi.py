"""The OpenAPI document of the daemon's local API: GET /v1/openapi.json, and docs/openapi-daemon.json.

The types of requests are those that validate them; a test compares the types of responses with real answers. Hooks and
MCP have other formats and are not described. If you change a route or a type: 1. run
`python -m posthouse.daemon.ipc.openapi > docs/openapi-daemon.json`, 2. read the difference as a client would.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from posthouse.client.daemon.locate import MESH_HEADER
from posthouse.daemon.context import LocalCall
from posthouse.daemon.ipc.response_types import LocalError
from posthouse.daemon.ipc.routes import ROUTES as DESCRIBED_ROUTES
from posthouse.daemon.request_fields import AgentName, MeshName, RowKey, form
from posthouse.http.openapi import ApiDescription, describe_api, encode_document
from posthouse.http.response import JSON, HttpResponse
from posthouse.http.router import Route
from posthouse.model.address import AGENT_HEADER, AGENT_NAME
from posthouse.model.node import MESH_NAME
from posthouse.version import __version__

_API = ApiDescription(
    title="posthouse daemon",
    version=__version__,
    description=(
        "The local API of a daemon: HTTP over the Unix socket `sock` in its directory, which needs no token, and on "
        "127.0.0.1 at the port in `http.port`, with the token in `local_token`."
    ),
    path_parameters={"id": RowKey, "name": AgentName, "mesh": MeshName},
    problem=LocalError,
    problem_media_type=JSON,
    headers={
        AGENT_HEADER: Annotated[
            str, form("Agent that the request acts for; also ?agent=. Empty: default inbox.", AGENT_NAME.pattern, "")
        ],
        MESH_HEADER: Annotated[
            str, form("Mesh of the request; also ?mesh=. Absent: the default mesh.", MESH_NAME.pattern)
        ],
    },
)


def describe_local_api(routes: Sequence[Route[LocalCall]] = DESCRIBED_ROUTES) -> dict[str, Any]:
    """Return the document of the routes that declare their responses."""
    return describe_api([replace(route, summary=_summary(route)) for route in routes if route.responses], _API)


def _summary(route: Route[LocalCall]) -> str:
    return (route.handler.__doc__ or "").partition("\n")[0].rstrip(".")


async def show_document(call: LocalCall) -> HttpResponse:
    """Return the OpenAPI document of this version."""
    return HttpResponse(200, _document())


@lru_cache(maxsize=1)
def _document() -> bytes:
    return encode_document(describe_local_api(ROUTES))


ROUTES: tuple[Route[LocalCall], ...] = (
    *DESCRIBED_ROUTES,
    Route(
        "GET",
        "/v1/openapi.json",
        show_document,
        responses={200: dict[str, Any]},
        ignored_headers=frozenset({MESH_HEADER}),
    ),
)

if __name__ == "__main__":
    sys.stdout.buffer.write(_document())
