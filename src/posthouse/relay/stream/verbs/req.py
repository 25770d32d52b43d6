"""["REQ", sub, {cursor, limit}, filter...]: stored matches, EOSE, then live ones; answered by CLOSED if refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION, QUERY_MAX_LIMIT
from posthouse.relay.stream.subscription import Subscription
from posthouse.relay.stream.verbs.arguments import expect, read_filters, read_object, read_sub, reader_of

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection

_OPTIONS = frozenset({"cursor", "limit"})


def req(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Open a subscription."""
    expect(arguments, "REQ", '["REQ", sub, {cursor, limit}, filter...]', 2, 2 + FILTERS_PER_SUBSCRIPTION)
    sub = read_sub(arguments[0])
    try:
        _open(connection, sub, arguments)
    except PosthouseError as failure:
        connection.send("CLOSED", sub, failure.problem(), None)


def _open(connection: Connection, sub: str, arguments: Sequence[bytes]) -> None:
    from posthouse.relay.stream.connection import count_values

    node = reader_of(connection)
    limits = connection.edge.limits
    options = read_object(arguments[1], _OPTIONS, "REQ")
    filters = read_filters(arguments[2:])
    if sub in connection.subscriptions:
        raise error("subscription_exists", sub=sub)
    subscription = Subscription(connection, sub, node, filters, _cursor(options), _limit(options))
    values = count_values(subscription)
    if len(connection.subscriptions) >= limits.subscriptions_per_connection:
        raise error("subscriptions_exhausted", limit=limits.subscriptions_per_connection)
    if connection.filter_values + values > limits.filter_values_per_connection:
        raise error("subscriptions_exhausted", limit=limits.subscriptions_per_connection)
    connection.subscriptions[sub] = subscription
    connection.filter_values += values
    connection.start(subscription.run())


def _cursor(options: dict[str, Any]) -> str | None:
    cursor = options.get("cursor")
    if cursor is not None and type(cursor) is not str:
        raise error("frame_malformed", reason="cursor is a text, or absent")
    return cursor


def _limit(options: dict[str, Any]) -> int | None:
    limit = options.get("limit")
    if limit is not None and (type(limit) is not int or not 0 <= limit <= QUERY_MAX_LIMIT):
        raise error("frame_malformed", reason=f"limit is a number from 0 to {QUERY_MAX_LIMIT}, or absent")
    return limit
