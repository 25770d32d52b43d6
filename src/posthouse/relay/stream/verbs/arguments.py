"""Arguments of stream commands, read strictly: subscription ids, options and filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.model.filters import Filter, filter_from_json
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION
from posthouse.model.strict_json import parse_json

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

SUB_MAX_CHARS = 64


def expect(arguments: Sequence[bytes], verb: str, form: str, least: int, most: int) -> None:
    """Raise frame_malformed unless there are `least` to `most` arguments."""
    if not least <= len(arguments) <= most:
        raise error("frame_malformed", reason=f"{verb} is {form}")


def read_sub(argument: bytes) -> str:
    """Return a subscription id."""
    sub = parse_json(argument)
    if type(sub) is not str or not 1 <= len(sub) <= SUB_MAX_CHARS:
        raise error("subscription_id_invalid", limit=SUB_MAX_CHARS)
    return sub


def read_filters(arguments: Sequence[bytes]) -> list[Filter]:
    """Return filters; no filter at all means every event, as an empty one does."""
    if len(arguments) > FILTERS_PER_SUBSCRIPTION:
        raise error("filter_invalid", field="filters", reason=f"there are more than {FILTERS_PER_SUBSCRIPTION}")
    return [filter_from_json(parse_json(argument)) for argument in arguments] or [Filter()]


def read_object(argument: bytes, fields: frozenset[str], verb: str) -> dict[str, Any]:
    """Return an object that has no other fields than these."""
    value = parse_json(argument)
    if type(value) is not dict:
        raise error("frame_malformed", reason=f"the options of {verb} are an object")
    if unknown := sorted(value.keys() - fields):
        raise error("frame_malformed", reason=f"{verb} has no option {unknown[0]!r}")
    return value


def reader_of(connection: Connection) -> str:
    """Return who reads on this connection, or raise authentication_required."""
    if connection.node is None:
        raise error("authentication_required")
    return connection.node
