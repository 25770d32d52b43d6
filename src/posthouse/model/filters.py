"""Event filters: the events that a query or a subscription selects.

All conditions of a filter must hold; of a list, at least one value must match. A given list must not be empty, because
it could mean "nothing" or "anything". Time bounds are inclusive. A filter comes from JSON (REQ on the stream) or from
query parameters; both give the same value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, is_event_id, kind_class
from posthouse.model.limits import FILTER_MAX_VALUES, INT64_MAX, QUERY_MAX_LIMIT, TAG_VALUE_MAX_BYTES
from posthouse.model.node import is_node_id, validate_mesh_name
from posthouse.model.strict_json import DECIMAL, ns_number

_TAG_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LISTS = ("ids", "authors", "kinds")
_NUMBERS = ("since_ns", "until_ns", "limit")


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter; None means no condition."""

    ids: frozenset[str] | None = None
    authors: frozenset[str] | None = None
    kinds: frozenset[int] | None = None
    #: tag name -> values, one of which must be the first value of such a tag
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    mesh: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    #: maximum number of stored events; not part of matching
    limit: int | None = None

    def matches(self, event: Event) -> bool:
        """Return True if the event meets every condition."""
        return (
            (self.kinds is None or event.kind in self.kinds)
            and (self.authors is None or event.pubkey in self.authors)
            and (self.ids is None or event.id in self.ids)
            and (self.since_ns is None or event.created_at_ns >= self.since_ns)
            and (self.until_ns is None or event.created_at_ns <= self.until_ns)
            and (self.mesh is None or event.mesh == self.mesh)
            and self._matches_tags(event)
        )

    def _matches_tags(self, event: Event) -> bool:
        for name, wanted in self.tags.items():
            for tag in event.tags:
                if len(tag) > 1 and tag[0] == name and tag[1] in wanted:
                    break
            else:
                return False
        return True


def filter_from_json(value: Any) -> Filter:
    """Return the filter in plain JSON values, or raise filter_invalid for the first invalid field."""
    if type(value) is not dict:
        _refuse("filter", "it is not an object")
    _bound_values(value)
    return Filter(
        ids=_texts(value, "ids", is_event_id, "an event id"),
        authors=_texts(value, "authors", is_node_id, "a node id"),
        kinds=_kinds(value),
        tags={key[1:]: _tag_values(key, value[key]) for key in value if key.startswith("#")},
        mesh=_mesh(value),
        since_ns=_number(value, "since_ns", INT64_MAX),
        until_ns=_number(value, "until_ns", INT64_MAX),
        limit=_number(value, "limit", INT64_MAX),
    )


def filter_from_query(parameters: Iterable[tuple[str, str]], max_limit: int = QUERY_MAX_LIMIT) -> Filter:
    """Return the filter in decoded query parameters; lists are comma-separated, a parameter occurs once.

    Parameters that are not the filter's (cursor, order) must have been taken out before.
    """
    plain: dict[str, Any] = {}
    for name, text in parameters:
        if name in plain:
            _refuse(name, "it is given twice")
        plain[name] = _plain(name, text)
    if type(plain.get("limit")) is int and plain["limit"] > max_limit:
        _refuse("limit", f"it is more than {max_limit}")
    return filter_from_json(plain)


def _plain(name: str, text: str) -> Any:
    if name in _NUMBERS:
        return ns_number(text)
    if name == "mesh":
        return text
    parts = text.split(",")
    return [int(part) if DECIMAL.fullmatch(part) else part for part in parts] if name == "kinds" else parts


def _bound_values(value: dict[str, Any]) -> None:
    total = 0
    for name, item in value.items():
        if name in _LISTS or (name.startswith("#") and _TAG_NAME.fullmatch(name[1:])):
            if type(item) is not list or not item:
                _refuse(name, "it is not a list with at least one value")
            total += len(item)
        elif name not in _NUMBERS and name != "mesh":
            _refuse(name, "a filter has no such field")
    if total > FILTER_MAX_VALUES:
        _refuse("filter", f"its lists have {total} values; the limit is {FILTER_MAX_VALUES}")


def _texts(value: dict[str, Any], name: str, is_right: Any, what: str) -> frozenset[str] | None:
    if name not in value:
        return None
    for item in value[name]:
        if type(item) is not str or not is_right(item):
            _refuse(name, f"{item!r} is not {what}")
    return frozenset(value[name])


def _kinds(value: dict[str, Any]) -> frozenset[int] | None:
    if "kinds" not in value:
        return None
    for kind in value["kinds"]:
        if type(kind) is not int:
            _refuse("kinds", f"{kind!r} is not an integer")
        try:
            kind_class(kind)
        except PosthouseError as fault:
            raise error("filter_invalid", field="kinds", reason=str(fault)) from fault
    return frozenset(value["kinds"])


def _tag_values(name: str, items: list[Any]) -> frozenset[str]:
    for item in items:
        if type(item) is not str or len(item) > TAG_VALUE_MAX_BYTES:
            _refuse(name, "a value is not a string within the limit of tag values")
    return frozenset(items)


def _mesh(value: dict[str, Any]) -> str | None:
    if "mesh" not in value:
        return None
    try:
        return validate_mesh_name(value["mesh"])
    except PosthouseError as fault:
        raise error("filter_invalid", field="mesh", reason=str(fault)) from fault


def _number(value: dict[str, Any], name: str, most: int) -> int | None:
    number = ns_number(value.get(name)) if name.endswith("_ns") else value.get(name)
    if name in value and (type(number) is not int or not 0 <= number <= most):
        _refuse(name, f"{number!r} is not an integer from 0 to {most}")
    return number


def _refuse(where: str, reason: str) -> NoReturn:
    raise error("filter_invalid", field=where, reason=reason)
