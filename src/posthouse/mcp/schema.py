"""JSON Schemas of tools, made from the structs that read arguments and write answers.

There is one truth: what a struct refuses, its schema forbids. References are put where they are used; titles
and descriptions are left out, because every word of a definition is read by a model before each of its turns.
"""

from __future__ import annotations

from typing import Any

import msgspec

_LEFT_OUT = frozenset({"title", "default", "description"})
_REFERENCE = "#/$defs/"


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct as one object without references."""
    made = msgspec.json.schema(struct)
    inlined: dict[str, Any] = _inline(made, made.get("$defs", {}))
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].removeprefix(_REFERENCE)], definitions)
    return {name: _member(name, value, definitions) for name, value in node.items() if _is_kept(name, value)}


def _member(name: str, value: Any, definitions: dict[str, Any]) -> Any:
    # below `properties` the names are those of fields, none of which is a keyword
    if name == "properties":
        return {field: _inline(about, definitions) for field, about in value.items()}
    return _inline(value, definitions)


def _is_kept(name: str, value: Any) -> bool:
    return name not in _LEFT_OUT and not (name == "required" and value == [])
