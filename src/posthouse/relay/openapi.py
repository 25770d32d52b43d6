"""The table of routes, and the OpenAPI 3.1 document written from it.

The types that validate requests are the types the document shows. docs/openapi.json is this document, committed as
the contract; a test keeps the two equal. If you change a route or a type: 1. run `python -m posthouse.relay.openapi
> docs/openapi.json`, 2. read the difference as a client would.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from posthouse.http.response import HttpResponse
from posthouse.relay.http.auth_routes import AUTH_ROUTES, INVITE_ROUTES, JOIN_ROUTES
from posthouse.relay.http.event_routes import ADDRESS_ROUTES, COUNT_ROUTES, EVENT_ROUTES, ONE_EVENT_ROUTES
from posthouse.relay.http.lock_routes import LOCK_ROUTES
from posthouse.relay.http.mesh_routes import (
    ACCESS_ROUTES,
    BLOCK_ROUTES,
    MEMBER_ROUTES,
    MESH_ROUTES,
    SUBSCRIPTION_ROUTES,
    TOPIC_ROUTES,
)
from posthouse.relay.http.message_routes import MESSAGE_ROUTES, QUEUE_ROUTES
from posthouse.relay.http.operation_routes import (
    EXPORT_ROUTES,
    HEALTH_ROUTES,
    INFO_ROUTES,
    JOURNAL_ROUTES,
    METRICS_ROUTES,
    PRUNE_ROUTES,
)
from posthouse.relay.http.router import PROBLEM, Access, Call, Route
from posthouse.relay.http.schemas import PATH_PARAMETERS, Problem
from posthouse.relay.stream.endpoint import STREAM_ROUTES
from posthouse.version import __version__


async def contract(call: Call) -> HttpResponse:
    """Return the OpenAPI document of this version."""
    return HttpResponse(200, _document())


@lru_cache(maxsize=1)
def _document() -> bytes:
    return encode_document(describe_routes(ROUTES))


_REFERENCE = "#/components/schemas/{name}"
_TAG_FILTER = {
    "name": "#t",
    "in": "query",
    "required": False,
    "description": "Values of the tag t, comma-separated; likewise for any other tag, as #name.",
    "schema": {"type": "string"},
}


def describe_routes(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    types = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known, components)
    shown = {name: schema for name, schema in components.items() if not name.endswith("Query")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "posthouse relay",
            "version": __version__,
            "description": "Signed events, queries and meshes; the stream is described in docs/protocol.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": shown,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def encode_document(document: dict[str, Any]) -> bytes:
    """Return the document as the text that is committed."""
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2) + b"\n"


def _types(routes: Iterable[Route]) -> Iterable[Any]:
    yield Problem
    for route in routes:
        yield from route.bodies
        if route.query is not None:
            yield route.query
        yield from chain.from_iterable(_options(answer) for answer in route.answers.values())
        yield from (PATH_PARAMETERS[name] for name in route.parameters)


def _operation(route: Route, known: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.name,
        "parameters": [*_path_parameters(route, known), *_query_parameters(route, known, components)],
        "responses": {
            **{str(status): _response(route, status, answer, known) for status, answer in route.answers.items()},
            "default": {"description": "Refused.", "content": {PROBLEM: {"schema": known[Problem]}}},
        },
    }
    if route.bodies:
        schemas = [known[body] for body in route.bodies]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.access is Access.NODE:
        operation["security"] = [{"token": []}]
    return operation


def _path_parameters(route: Route, known: dict[Any, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": known[PATH_PARAMETERS[name]]}
        for name in route.parameters
    ]


def _query_parameters(route: Route, known: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    struct = components[known[route.query]["$ref"].rpartition("/")[2]]
    required = set(struct.get("required", ()))
    shown = [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
        for name, schema in struct["properties"].items()
    ]
    return [*shown, _TAG_FILTER] if route.has_tag_filters else shown


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a parameter may be when it is given: null is how a struct says that it is not."""
    given = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default") or value is not None}
    rest.pop("anyOf", None)
    return rest | given[0] if len(given) == 1 else schema


def _response(route: Route, status: int, answer: Any, known: dict[Any, Any]) -> dict[str, Any]:
    if status == 101:
        return {"description": "The connection is a WebSocket now."}
    schemas = [known[option] for option in _options(answer)]
    schema = {"type": "string"} if answer is None else schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"description": "Done.", "content": {route.media_type: {"schema": schema}}}


def _options(answer: Any) -> tuple[Any, ...]:
    """Return the types of which an answer is one."""
    return answer if isinstance(answer, tuple) else () if answer is None else (answer,)


CONTRACT_ROUTES = (
    Route("GET", "/openapi.json", contract, "Read the OpenAPI document", Access.ANYBODY, answers={200: dict[str, Any]}),
)
ROUTES: tuple[Route, ...] = (
    *(*HEALTH_ROUTES, *INFO_ROUTES, *CONTRACT_ROUTES, *METRICS_ROUTES, *AUTH_ROUTES),
    *(*EVENT_ROUTES, *COUNT_ROUTES, *ONE_EVENT_ROUTES, *ADDRESS_ROUTES, *STREAM_ROUTES),
    *(*MESH_ROUTES, *MEMBER_ROUTES, *ACCESS_ROUTES, *TOPIC_ROUTES, *SUBSCRIPTION_ROUTES, *BLOCK_ROUTES),
    *(*INVITE_ROUTES, *JOIN_ROUTES, *LOCK_ROUTES, *MESSAGE_ROUTES, *QUEUE_ROUTES),
    *(*JOURNAL_ROUTES, *EXPORT_ROUTES, *PRUNE_ROUTES),
)

if __name__ == "__main__":
    sys.stdout.buffer.write(encode_document(describe_routes(ROUTES)))
