"""The OpenAPI 3.1 description, written from the table of routes: the types that validate are the types that are shown.

docs/openapi.json is this document, committed as the contract; a test keeps the two equal. If you change a route or a
type: 1. run `python -m posthouse.relay.http.openapi > docs/openapi.json`, 2. look at the difference as a client would.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from posthouse.relay.http.parameters import PATH_PARAMETERS, Problem
from posthouse.relay.http.problem import PROBLEM
from posthouse.relay.http.route import Access, Route
from posthouse.version import __version__

_REFERENCE = "#/components/schemas/{name}"
_TAG_FILTER = {
    "name": "#t",
    "in": "query",
    "required": False,
    "description": "Values of the tag t, comma-separated; likewise for any other tag, as #name.",
    "schema": {"type": "string"},
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
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


def encode(document: dict[str, Any]) -> bytes:
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


if __name__ == "__main__":
    from posthouse.relay.http.table import ROUTES

    sys.stdout.buffer.write(encode(describe(ROUTES)))
