"""["COUNT", sub, filter...]: how many stored events match; answered by COUNT, or CLOSED if refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError
from posthouse.model.filters import Filter
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION
from posthouse.relay.stream.verbs.arguments import expect, read_filters, read_sub, reader_of

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection


def count(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Count stored events."""
    expect(arguments, "COUNT", '["COUNT", sub, filter]', 1, 1 + FILTERS_PER_SUBSCRIPTION)
    sub = read_sub(arguments[0])
    try:
        node, filters = reader_of(connection), read_filters(arguments[1:])
    except PosthouseError as failure:
        connection.send("CLOSED", sub, failure.problem(), None)
        return
    connection.start(_count(connection, sub, node, filters))


async def _count(connection: Connection, sub: str, node: str, filters: Sequence[Filter]) -> None:
    try:
        async with connection.stored_turn:
            number = await connection.edge.core.count(node, filters)
    except PosthouseError as failure:
        connection.send("CLOSED", sub, failure.problem(), None)
        return
    connection.send("COUNT", sub, number)
