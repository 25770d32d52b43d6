"""OpenAPI 3.1 documents written from routes.

The types that validate a request are the types that the document shows, so the two cannot differ. Query structs are
shown as single parameters. A server adds what its routes do not declare: its title and the types of its path
parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from posthouse.http.response import JSON, PROBLEM, Problem
from posthouse.http.router import Route

_REFERENCE = "#/components/schemas/{name}"
_QUERY = "Query"  # structs of parameters end in it; parameters are shown one by one, and are text anyway
_DECIMAL = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
_TAG_FILTER = {
    "name": "#t",
    "in": "query",
    "required": False,
    "description": "Values of the tag t, comma-separated; likewise for any other tag, as #name.",
    "schema": {"type": "string"},
}


@dataclass(frozen=True)
class ApiDescription:
    """The parts of a document that do not come from its routes."""

    title: str
    version: str
    description: str
    #: name of a path parameter -> its type
    path_parameters: Mapping[str, Any]
    #: type and media type of every refusal
    problem: type[Any] = Problem
    problem_media_type: str = PROBLEM
    #: name of a header that every request may have -> its type
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: True: numbers in fields that end in _ns may be decimal text
    has_ns_text: bool = False


def schema_components(types: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the schemas of types and the components that they refer to; descriptions without indentation.

    Python 3.13 takes the indentation out of docstrings; the documents are the same on every Python.
    """
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    for each in components.values():
        if "description" in each:
            each["description"] = inspect.cleandoc(each["description"])
    return schemas, components


def describe_api(routes: Sequence[Route[Any]], api: ApiDescription) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    types = list(dict.fromkeys(_types(routes, api)))
    schemas, components = schema_components(types)
    if api.has_ns_text:
        components = {name: each if name.endswith(_QUERY) else _with_ns_text(each) for name, each in components.items()}
    writer = _OperationWriter(api, dict(zip(types, schemas, strict=True)), components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = writer.operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": api.title,
            "version": api.version,
            "description": api.description,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if not name.endswith(_QUERY)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def encode_document(document: dict[str, Any]) -> bytes:
    """Return the document as the text that is committed."""
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2) + b"\n"


def _types(routes: Iterable[Route[Any]], api: ApiDescription) -> Iterable[Any]:
    yield api.problem
    yield from api.headers.values()
    for route in routes:
        yield from route.bodies
        if route.query is not None:
            yield route.query
        yield from chain.from_iterable(alternatives(response) for response in route.responses.values())
        yield from (api.path_parameters[name] for name in route.parameters)


class _OperationWriter:
    """Writes operations with the schemas of one document."""

    def __init__(self, api: ApiDescription, schemas: dict[Any, Any], components: dict[str, Any]) -> None:
        self._api = api
        self._schemas = schemas
        self._components = components

    def operation(self, route: Route[Any]) -> dict[str, Any]:
        """Return the operation object of a route."""
        responses = {str(status): self._response(route, status) for status in route.responses}
        problem = self._schemas[self._api.problem]
        operation: dict[str, Any] = {
            "summary": route.summary,
            "operationId": route.name,
            "parameters": [*self._path_parameters(route), *self._query_parameters(route), *self._headers(route)],
            "responses": {
                **responses,
                "default": {"description": "Refused.", "content": {self._api.problem_media_type: {"schema": problem}}},
            },
        }
        if route.bodies:
            schema = self._any_of(route.bodies)
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
        if not route.is_public:
            operation["security"] = [{"token": []}]
        return operation

    def _path_parameters(self, route: Route[Any]) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "path", "required": True, "schema": self._schemas[self._api.path_parameters[name]]}
            for name in route.parameters
        ]

    def _headers(self, route: Route[Any]) -> list[dict[str, Any]]:
        return [
            {"name": name, "in": "header", "required": False, "schema": self._schemas[kind]}
            for name, kind in self._api.headers.items()
            if name not in route.ignored_headers
        ]

    def _query_parameters(self, route: Route[Any]) -> list[dict[str, Any]]:
        if route.query is None:
            return []
        struct = self._components[self._schemas[route.query]["$ref"].rpartition("/")[2]]
        required = set(struct.get("required", ()))
        shown = [
            {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
            for name, schema in struct["properties"].items()
        ]
        return [*shown, _TAG_FILTER] if route.has_tag_filters else shown

    def _response(self, route: Route[Any], status: int) -> dict[str, Any]:
        if status == 101:
            return {"description": "The connection is a WebSocket now."}
        response = route.responses[status]
        schema = {"type": "string"} if response is None else self._any_of(alternatives(response))
        return {"description": "Done.", "content": {route.media_type: {"schema": schema}}}

    def _any_of(self, types: Sequence[Any]) -> Any:
        schemas = [self._schemas[each] for each in types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _with_ns_text(schema: Any) -> Any:
    """Return a schema whose integer properties that end in _ns may be text, too."""
    if isinstance(schema, list):
        return [_with_ns_text(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {name: _with_ns_text(each) for name, each in schema.items()}
    if isinstance(properties := shown.get("properties"), dict):
        shown["properties"] = {name: _ns_property(name, each) for name, each in properties.items()}
    return shown


def _ns_property(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("anyOf", [schema])
    is_number = any(option.get("type") == "integer" for option in options)
    return {"anyOf": [*options, _DECIMAL]} if is_number and name.endswith("_ns") else schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that is present: null is how a struct marks an absent one."""
    present = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default") or value is not None}
    rest.pop("anyOf", None)
    return rest | present[0] if len(present) == 1 else schema


def alternatives(response: Any) -> tuple[Any, ...]:
    """Return the alternative types of a response."""
    return response if isinstance(response, tuple) else () if response is None else (response,)
